// Where the time of a group's collectives goes, seen from one rank.
//
// A collective is submitted here, agreed (all ranks have it), begun and ended.
// Begin to end is transfer: moving and reducing data. That a rank is not
// scheduled in the middle of a transfer counts as transfer.
//
// A step submits many collectives, and all of them wait for the same late rank
// at the same time. So the sums do not add up their waits: what counts is the
// time in which this rank had something pending and nothing could run. Each
// such stretch ends when a last rank submits a collective, and counts for that
// rank. Waits for this rank itself are its own work and count for nobody.
//
// Cost: no clock is read for it; a handful of additions per collective.
#ifndef TFRING_CORE_SCHEDULE_TIMING_H_
#define TFRING_CORE_SCHEDULE_TIMING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfring {

// Nanoseconds of CLOCK_MONOTONIC.
struct Moments {
  int64_t pending = 0;    // since when something was pending here
  int64_t submitted = 0;  // by this rank
  int64_t agreed = 0;     // the last rank submitted it
  int64_t began = 0;
  int64_t ended = 0;
};

// Written by the executor only, but for flights; read by any thread.
class Timing {
 public:
  // Of the rank at `place` in a group of `size`.
  Timing(int place, int size)
      : place_(place), waited_for_(static_cast<size_t>(size)) {}

  // A collective has run, for which the rank at `last` was waited for.
  void Count(const Moments& moments, int last);
  // One that a GPU went on with at `moments.ended` has landed. From any thread,
  // but one at a time and in their order; what overlaps counts once.
  void CountFlight(const Moments& moments, int64_t landed);

  uint64_t wait_ns() const { return Read(wait_ns_); }
  // All had them, but others ran first or the executor had yet to wake; of
  // collectives queued at the same time each counts.
  uint64_t queue_ns() const { return Read(queue_ns_); }
  uint64_t transfer_ns() const { return Read(transfer_ns_) + Read(flight_ns_); }
  // wait_ns by the place of the rank waited for.
  uint64_t waited_for(int place) const {
    return Read(waited_for_[static_cast<size_t>(place)]);
  }

 private:
  using Sum = std::atomic<uint64_t>;

  static uint64_t Read(const Sum& sum) {
    return sum.load(std::memory_order_relaxed);
  }
  static void Add(int64_t ns, Sum* sum);

  const int place_;
  int64_t ended_ = 0;  // the collective before
  Sum wait_ns_{0};
  Sum queue_ns_{0};
  Sum transfer_ns_{0};
  Sum flight_ns_{0};
  int64_t landed_ = 0;  // the flight before
  std::vector<Sum> waited_for_;
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_TIMING_H_
