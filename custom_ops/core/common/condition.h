// Waiting on a condition variable until something is so.
//
// Not by std::condition_variable::wait: GCC 12 gave it another symbol, and a
// wheel built there would need libstdc++ 12 (GLIBCXX_3.4.30) for it alone. The
// same wait on the handles below it needs nothing new.
#ifndef TFRING_CORE_COMMON_CONDITION_H_
#define TFRING_CORE_COMMON_CONDITION_H_

#include <pthread.h>

#include <condition_variable>
#include <mutex>

namespace tfring {

// Returns with the lock held and `ready()` true; `ready` is called with the
// lock held.
template <typename Ready>
void Await(std::condition_variable* condition,
           std::unique_lock<std::mutex>* lock, Ready ready) {
  while (!ready()) {
    pthread_cond_wait(condition->native_handle(),
                      lock->mutex()->native_handle());
  }
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_CONDITION_H_
