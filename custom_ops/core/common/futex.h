// Sleep on a 32-bit word that processes may share; Linux futex(2).
#ifndef TFRING_CORE_COMMON_FUTEX_H_
#define TFRING_CORE_COMMON_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace tfring {

// Sleeps while *word == expected, at most timeout_ns; may wake for no reason.
inline void FutexWait(std::atomic<uint32_t>* word, uint32_t expected,
                      int64_t timeout_ns) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  timespec timeout;
  timeout.tv_sec = timeout_ns / 1000000000;
  timeout.tv_nsec = timeout_ns % 1000000000;
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

inline void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_FUTEX_H_
