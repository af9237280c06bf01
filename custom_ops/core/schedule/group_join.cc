// A rank that has no more to contribute: it waits for the others to come to
// the same point and meanwhile helps with what they run.
#include <algorithm>
#include <utility>

#include "custom_ops/core/collectives/joined.h"
#include "custom_ops/core/common/hash.h"
#include "custom_ops/core/schedule/group.h"

namespace tfring {
namespace {

constexpr uint64_t kJoinSeed = 0x6a6f696e;  // "join"
// Past its deadline by this much, a rank no longer waits for rank 0's word.
constexpr double kOverdueSeconds = 2.0;

}  // namespace

// Of the joining that goes on: no collective's, and no former joining's.
uint64_t Group::JoinUid() const { return HashCombine(kJoinSeed, joinings_); }

// Announced once everything that this rank submitted before has been done, so
// that it is either joined or has collectives announced, never both.
bool Group::MustAnnounceJoin() {
  if (!joined_ || join_announced_ || running_ || pending_.size() != 1) {
    return false;
  }
  join_announced_ = true;
  ++announced_;
  return true;
}

void Group::AnnounceJoin() {
  bool logged = false;
  const Status status = announcer_.Join(NowNs(), &logged);
  if (!status.ok()) return AbortWorld(status);
  if (logged) local_->RingAll();
}

// A place of the log where all ranks are at the same point: none is joined any
// more, and names count from the start, since joined ranks have not used them.
void Group::EndJoin(uint64_t last, Operation* operation) {
  if (operation->counts != nullptr) {
    operation->counts[0] = members_->RankAt(static_cast<int>(last));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  joined_ = false;
  join_announced_ = false;
  uses_.clear();
  ++joinings_;
}

Status Group::RunWithJoined(Verdict verdict, Operation* operation) {
  return tfring::RunWithJoined(
      &plane_, operation, verdict == Verdict::kRunJoined,
      [this](Operation* one) { return RunAlike(one); });
}

// A rank that has joined waits as long as the others work.
int64_t Group::WaitsSince(const Operation& operation) const {
  return operation.kind == TFR_JOIN
             ? std::max(operation.submitted_ns, progress_ns_)
             : operation.submitted_ns;
}

// The others may have begun to wait just before a join that waits for them was
// reported; what they wait for will be reported in time.
double Group::OverdueAfter(const Operation& operation) const {
  const int limits = operation.kind == TFR_JOIN ? 2 : 1;
  return limits * options_.fail_after_s + kOverdueSeconds;
}

}  // namespace tfring
