// A moment's rest between two looks at memory that others write.
#ifndef TFRING_CORE_COMMON_RELAX_H_
#define TFRING_CORE_COMMON_RELAX_H_

#include <atomic>

namespace tfring {

inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_RELAX_H_
