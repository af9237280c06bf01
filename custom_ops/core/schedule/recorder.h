// What a rank did, one record per collective, for a trace: a ring of bounded
// memory that is off until somebody wants it. Serves all groups of a world.
// Cost while it is off: one relaxed load per collective. Thread safe.
#ifndef TFRING_CORE_SCHEDULE_RECORDER_H_
#define TFRING_CORE_SCHEDULE_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "custom_ops/core/tfring.h"

namespace tfring {

class Recorder {
 public:
  // Keeps the newest `capacity` records and forgets former ones; 0 stops it.
  void Start(uint64_t capacity);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Add(const tfr_record& record);
  // Takes up to `capacity` of them, the oldest first. `*lost` is how many had
  // no room since the last call.
  uint64_t Take(tfr_record* records, uint64_t capacity, uint64_t* lost);

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<tfr_record> ring_;  // guarded by mutex_
  uint64_t first_ = 0;            // index of the oldest; guarded by mutex_
  uint64_t count_ = 0;            // guarded by mutex_
  uint64_t lost_ = 0;             // guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_RECORDER_H_
