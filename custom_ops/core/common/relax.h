// How threads of several processes take turns looking at memory.
#ifndef TFRING_CORE_COMMON_RELAX_H_
#define TFRING_CORE_COMMON_RELAX_H_

#include <atomic>

namespace tfring {

// A moment's rest between two looks.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// What this thread has written is seen by whoever's later writes it does not
// see from here on. (ThreadSanitizer knows no fences.)
inline void FullFence() {
#if defined(__SANITIZE_THREAD__)
  std::atomic<int> anything{0};
  anything.exchange(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_RELAX_H_
