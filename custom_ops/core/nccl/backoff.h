// How to wait for a GPU: CUDA and NCCL can only be asked.
#ifndef TFRING_CORE_NCCL_BACKOFF_H_
#define TFRING_CORE_NCCL_BACKOFF_H_

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "custom_ops/core/common/clock.h"

namespace tfring {

// Pauses that begin short, for what takes microseconds, and grow to a hundredth
// of what has been waited, so that they cost little and delay little.
class Backoff {
 public:
  void Pause() {
    const int64_t waited = NowNs() - began_;
    if (waited < kSpinNs) {
      sched_yield();
      return;
    }
    const int64_t ns = std::clamp(waited / 100, kShortestNs, kLongestNs);
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
  }

 private:
  static constexpr int64_t kSpinNs = 200'000;
  static constexpr int64_t kShortestNs = 5'000;
  static constexpr int64_t kLongestNs = 1'000'000;

  const int64_t began_ = NowNs();
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_BACKOFF_H_
