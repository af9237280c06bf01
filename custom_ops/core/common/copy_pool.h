// Threads that share the passes over memory of one rank which owns several
// processors.
//
// A pass is cut into as many parts as there are threads, the caller's included;
// each part is done by one thread and the pass is over when all are. Threads
// look for a moment whether another pass follows, then sleep: an idle pool
// costs nothing. They start with the first pass and end with the pool.
#ifndef TFRING_CORE_COMMON_COPY_POOL_H_
#define TFRING_CORE_COMMON_COPY_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace tfring {

class CopyPool {
 public:
  explicit CopyPool(int threads) : threads_(threads) {}
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // The caller's included. Fewer than asked for if the system has no more.
  int threads() const { return threads_; }

  // Calls f(0) to f(threads() - 1), each on a thread of its own. One caller at
  // a time.
  template <typename F>
  void Run(F&& f) {
    if (!Start()) return f(0);
    call_ = [](void* function, int part) {
      (*static_cast<std::remove_reference_t<F>*>(function))(part);
    };
    function_ = &f;
    Begin();
    f(0);
    AwaitOthers();
  }

 private:
  bool Start();
  void Begin();
  void AwaitOthers();
  void ThreadMain(int part);

  int threads_;
  std::vector<std::thread> others_;
  void (*call_)(void* function, int part) = nullptr;
  void* function_ = nullptr;
  bool stopping_ = false;
  std::atomic<uint32_t> pass_{0};     // grows by one with each
  std::atomic<uint32_t> working_{0};  // other threads that have not finished
};

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_COPY_POOL_H_
