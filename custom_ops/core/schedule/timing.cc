#include "custom_ops/core/schedule/timing.h"

#include <algorithm>

namespace tfring {

// One writer: no other thread's addition can be lost.
void Timing::Add(int64_t ns, Sum* sum) {
  if (ns <= 0) return;
  sum->store(Read(*sum) + static_cast<uint64_t>(ns), std::memory_order_relaxed);
}

void Timing::Count(const Moments& moments, int last) {
  if (last >= 0 && last != place_) {
    const int64_t waited = moments.agreed - std::max(moments.pending, ended_);
    Add(waited, &wait_ns_);
    Add(waited, &waited_for_[static_cast<size_t>(last)]);
  }
  Add(moments.began - std::max(moments.agreed, moments.submitted), &queue_ns_);
  Add(moments.ended - moments.began, &transfer_ns_);
  ended_ = moments.ended;
}

void Timing::CountFlight(const Moments& moments, int64_t landed) {
  Add(landed - std::max(moments.ended, landed_), &flight_ns_);
  landed_ = landed;
}

}  // namespace tfring
