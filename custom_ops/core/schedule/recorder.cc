#include "custom_ops/core/schedule/recorder.h"

#include <utility>

namespace tfring {

void Recorder::Start(uint64_t capacity) {
  std::vector<tfr_record> ring(capacity);
  std::lock_guard<std::mutex> lock(mutex_);
  on_.store(capacity > 0, std::memory_order_relaxed);
  ring_ = std::move(ring);
  first_ = 0;
  count_ = 0;
  lost_ = 0;
}

void Recorder::Add(const tfr_record& record) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ring_.empty()) return;  // stopped meanwhile
  ring_[(first_ + count_) % ring_.size()] = record;
  if (count_ < ring_.size()) {
    ++count_;
  } else {
    first_ = (first_ + 1) % ring_.size();
    ++lost_;
  }
}

uint64_t Recorder::Take(tfr_record* records, uint64_t capacity,
                        uint64_t* lost) {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t taken = 0;
  while (taken < capacity && count_ > 0) {
    records[taken++] = ring_[first_];
    first_ = (first_ + 1) % ring_.size();
    --count_;
  }
  *lost = lost_;
  lost_ = 0;
  return taken;
}

}  // namespace tfring
