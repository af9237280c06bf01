// Threads of the engine: named for debuggers, deaf to signals, which belong to
// the program that loaded it.
#ifndef TFRING_CORE_COMMON_THREAD_H_
#define TFRING_CORE_COMMON_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tfring {

// Starts `run` on a thread called `name` (at most 15 characters).
template <typename F>
std::thread StartThread(const char* name, F&& run) {
  // Blocked before the thread exists, so that it never runs a handler.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<F>(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_THREAD_H_
