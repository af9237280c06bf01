// Small collectives whose data travels with the announcement (express.h).
//
// Only where the calling thread can run it itself and this rank has nothing
// else to do: then the order in which ranks run things is of no concern.
#include <algorithm>
#include <array>
#include <utility>

#include "custom_ops/core/collectives/allreduce_express.h"
#include "custom_ops/core/common/hash.h"
#include "custom_ops/core/common/relax.h"
#include "custom_ops/core/schedule/group.h"

namespace tfring {
namespace {

// Every rank reads what all have: no more than this in all.
constexpr uint64_t kMostBytes = 16 * 1024;

}  // namespace

bool Group::MayExpress(const Operation& operation) const {
  if (members_->host_count() != 1 || members_->size == 1 || faults_->any() ||
      operation.device > 0) {
    return false;
  }
  const auto ranks = static_cast<uint64_t>(members_->size);
  return FitsExpress(operation,
                     std::min(Express::kPayloadBytes, kMostBytes / ranks));
}

// The operation is pending. If it is the only one, fills a place with it and
// makes this thread the executor. mutex_ is held.
bool Group::TryExpress(const Operation& operation, const Announcement& what) {
  if (executing_ || pending_.size() != 1 || !backlog_.empty()) return false;
  char* const place = express_.Begin();
  if (place == nullptr) return false;
  StageExpress(operation, place);
  expressed_ = &operation;
  express_.Fill(HashCombine(what.uid, what.digest), what.now_ns);
  executing_ = true;
  return true;
}

// Whoever sees that it is decided wakes all; before, only those that must
// answer are woken.
void Group::RingForExpress() {
  FullFence();
  const bool decided = ExpressIsDecided();
  for (int p = 0; p < local_->local_size(); ++p) {
    if (p == local_->local_rank() || !local_->IsAsleep(p)) continue;
    if (decided || !express_.HasFilled(p)) local_->Ring(p);
  }
}

bool Group::ExpressIsDecided() {
  return express_.Count() != Express::Votes::kOpen;
}

// Whether it is decided soon. Others may sleep until they are told of it: those
// that must answer are woken if they have not at once.
bool Group::LookAtExpress() {
  constexpr int kLooks = 16;
  for (int i = 0; i < kLooks && !ExpressIsDecided(); ++i) Relax();
  RingForExpress();
  const auto ready = [this] { return ExpressIsDecided(); };
  return local_->Look(ready);
}

// Of a thread that has submitted it: what is not decided soon is left to the
// engine's thread.
void Group::HelpExpress(int32_t patience) {
  const uint64_t next = executed_.load(std::memory_order_relaxed);
  bool decided = LookAtExpress();
  if (!decided && patience == TFR_LINGER) {
    const auto ready = [&] {
      return ExpressIsDecided() || agreement_.head() > next;
    };
    const auto interrupted = [&] { return failure_->Stops(next); };
    local_->WaitAsleep(ready, interrupted, Deadline::After(kLingerSeconds));
    decided = ExpressIsDecided();
  }
  if (decided) RunOrAnnounceExpress();
  ReleaseExecutor();
}

// All ranks have filled their places. The operation is the first pending one,
// since it was the only one when it came; the list itself may grow meanwhile.
// `release`: this thread is the executor no longer.
std::unique_ptr<Operation> Group::RunExpress(bool release) {
  const Operation& operation = *expressed_;
  Moments moments;
  std::array<const char*, kMaxLocalRanks> staged;
  int last = 0;
  for (int p = 0; p < local_->local_size(); ++p) {
    staged[static_cast<size_t>(p)] = express_.payload(p);
    if (express_.filled_ns(p) > express_.filled_ns(last)) last = p;
  }
  ReduceExpress(operation, staged.data(), local_->local_size());
  moments.pending = moments.submitted = operation.submitted_ns;
  moments.agreed = express_.filled_ns(last);
  moments.began = std::max(moments.agreed, moments.submitted);
  moments.ended = progress_ns_ = NowNs();
  Count(operation, moments, members_->here()[static_cast<size_t>(last)]);
  bool announce_join = false;
  bool wake_thread = false;
  std::unique_ptr<Operation> done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    express_.Release();
    done = std::move(pending_.front());
    pending_.erase(pending_.begin());
    announce_join = MustAnnounceJoin();
    if (release) wake_thread = ReleaseExecutorLocked();
  }
  if (wake_thread) wake_.notify_one();
  if (announce_join) AnnounceJoin();
  return done;
}

void Group::RunOrAnnounceExpress() {
  if (express_.Count() == Express::Votes::kAll) {
    const std::unique_ptr<Operation> done = RunExpress(/*release=*/false);
    Finish(done.get(), Status::Ok());
  } else {
    AnnounceVoid();
  }
}

// Not all ranks have filled theirs with this: in the usual way, then.
void Group::AnnounceVoid() {
  Announcement announcement;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    express_.Release();
    const Operation& operation = *expressed_;
    announcement = {operation.uid, operation.Digest(), operation.submitted_ns};
    if (announced_ == Agreement::kWindow) {
      backlog_.push_back(announcement);
      return;
    }
    ++announced_;
  }
  Announce(announcement);
}

// What this rank has announced in the usual way, others may have tried here.
void Group::AnswerExpress() {
  if (!has_express() || !express_.IsCalled()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!express_.Refuse()) return;
  }
  local_->RingOthers();
}

}  // namespace tfring
