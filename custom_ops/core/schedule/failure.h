// What ended a group, or all groups of a world: the first error wins.
//
// A group ends in one of two ways. An abort ends everything at once, in all
// groups of the world. A rank that leaves in good order has still done its part
// of the first `n` logged collectives of each of its groups, so only later ones
// fail. Both are one number: collectives whose place in the group's log is
// limit() or later cannot finish.
#ifndef TFRING_CORE_SCHEDULE_FAILURE_H_
#define TFRING_CORE_SCHEDULE_FAILURE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>

#include "custom_ops/core/common/status.h"

namespace tfring {

class Failure {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  Failure();
  ~Failure();
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;

  uint64_t limit() const { return limit_.load(std::memory_order_seq_cst); }
  bool Stops(uint64_t index) const { return index >= limit(); }
  bool any() const { return limit() != kNone; }
  bool aborted() const { return limit() == 0; }

  // True if this was the first abort.
  bool Abort(Status status);
  // A rank has left after doing its part of the first `executed` collectives.
  void Leave(Status status, uint64_t executed);
  // The error of collectives that cannot finish.
  Status status() const;

  // Readable once something failed; for poll().
  int event_fd() const { return event_fd_; }
  // Called after every change, from the thread that reported it. Set (or
  // cleared with nullptr) while no other thread reports.
  void OnChange(std::function<void()> wake);

 private:
  void Signal();

  std::atomic<uint64_t> limit_{kNone};
  mutable std::mutex mutex_;
  Status abort_status_;  // guarded by mutex_
  Status leave_status_;  // guarded by mutex_
  // A mutex of its own: whoever is woken may ask for status().
  std::mutex wake_mutex_;
  std::function<void()> wake_;  // guarded by wake_mutex_
  int event_fd_;
};

// The failures of all groups of a world, so that an abort reaches each.
class Failures {
 public:
  // Until Remove(). A group that comes after an abort has failed already.
  void Add(Failure* failure);
  void Remove(Failure* failure);
  // True if this was the first abort.
  bool Abort(const Status& status);
  bool aborted() const;

 private:
  mutable std::mutex mutex_;
  Status status_;              // guarded by mutex_
  std::set<Failure*> groups_;  // guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_FAILURE_H_
