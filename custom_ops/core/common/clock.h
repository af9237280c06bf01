// Monotonic time and deadlines.
#ifndef TFRING_CORE_COMMON_CLOCK_H_
#define TFRING_CORE_COMMON_CLOCK_H_

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tfring {

inline int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// A point in monotonic time after which waiting is over.
class Deadline {
 public:
  static Deadline Never() { return Deadline(kNever); }

  // Zero and negative durations have expired at once; a duration too long for
  // the clock (or infinite) never expires.
  static Deadline After(double seconds) {
    if (!(seconds < kLongestSeconds)) return Never();
    const double ns = std::max(seconds, 0.0) * 1e9;
    return Deadline(NowNs() + static_cast<int64_t>(ns));
  }

  static Deadline AtNs(int64_t ns) { return Deadline(ns); }

  static Deadline Earlier(Deadline a, Deadline b) {
    return Deadline(std::min(a.ns_, b.ns_));
  }

  bool never() const { return ns_ == kNever; }
  bool expired() const { return !never() && NowNs() >= ns_; }
  int64_t ns() const { return ns_; }

  int64_t RemainingNs() const {
    return never() ? kNever : std::max<int64_t>(ns_ - NowNs(), 0);
  }

  // For poll() and epoll_wait(): -1 waits for ever. Rounded up, so that a wait
  // that times out has passed the deadline.
  int PollMs() const {
    if (never()) return -1;
    const int64_t ms = (RemainingNs() + 999999) / 1000000;
    return static_cast<int>(
        std::min<int64_t>(ms, std::numeric_limits<int>::max()));
  }

 private:
  explicit Deadline(int64_t ns) : ns_(ns) {}

  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr double kLongestSeconds = 1e9;

  int64_t ns_;
};

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_CLOCK_H_
