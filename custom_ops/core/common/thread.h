// Threads of the engine: named for debuggers, deaf to signals, which belong to
// the program that loaded it.
#ifndef TFRING_CORE_COMMON_THREAD_H_
#define TFRING_CORE_COMMON_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tfring {

// Blocks all signals for the calling thread while it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// Starts `run` on a thread called `name` (at most 15 characters). Throws
// std::system_error if the system has no thread left.
template <typename F>
std::thread StartThread(const char* name, F&& run) {
  // Blocked before the thread exists, so that it never runs a handler.
  const BlockedSignals blocked;
  std::thread thread(std::forward<F>(run));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_THREAD_H_
