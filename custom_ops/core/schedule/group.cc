#include "custom_ops/core/schedule/group.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "custom_ops/core/common/condition.h"
#include "custom_ops/core/common/hash.h"
#include "custom_ops/core/common/thread.h"

namespace tfring {
namespace {

Status HasJoined(const Operation& operation) {
  return FailedPrecondition(
      StrCat(operation.Title(),
             ": this rank has joined and takes no more collectives until all "
             "ranks have joined"));
}

// Concerns one collective; the engine is as good as before.
bool IsUsageError(const Status& status) {
  return status.code() == TFR_FAILED_PRECONDITION ||
         status.code() == TFR_INVALID_ARGUMENT ||
         status.code() == TFR_RESOURCE_EXHAUSTED;
}

}  // namespace

Group::Group(const GroupMembers* members, LocalGroup* local, Mesh* mesh,
             Failure* failure, Faults* faults, const GroupOptions& options)
    : members_(members),
      local_(local),
      failure_(failure),
      faults_(faults),
      options_(options),
      agreement_(local->agreement(), local->local_size()),
      announcer_(members, options.number, &agreement_),
      express_(local->agreement() + Agreement::Bytes(local->local_size()),
               local->local_size(), local->local_rank()),
      plane_(members, local, mesh, failure, faults, options.warn_after_s,
             options.fail_after_s),
      device_(&plane_, failure, options.gpu,
              {[this](Operation* one) { return RunOnHost(one); },
               [this](const Status& status) { AbortWorld(status); },
               [this](Flight* flight, const Status& status) {
                 Landed(flight, status);
               }}),
      timing_(members->rank, members->size) {
  plane_.SetHostAlgorithm(options.host_algorithm);
  plane_.OnStuck([this](const std::string& what, bool fatal) {
    ReportStuck(what, fatal);
  });
}

Group::~Group() {
  uint64_t executed = 0;
  static_cast<void>(Stop(Deadline::After(0), &executed));
}

void Group::Start(Control* control) {
  control_ = control;
  announcer_.SetControl(control);
  thread_ = StartThread("tfring-engine", [this] { ThreadMain(); });
}

// --- taking operations ------------------------------------------------------

Status Group::Submit(std::unique_ptr<Operation> operation) {
  if (!MayHelp(*operation)) {
    return Accept(std::move(operation), /*wake_thread=*/true);
  }
  const int32_t patience = operation->patience;
  uint64_t uid = 0;
  bool express = false;
  const bool may_express = MayExpress(*operation);
  TFR_RETURN_IF_ERROR(Accept(std::move(operation), /*wake_thread=*/false, &uid,
                             may_express ? &express : nullptr));
  if (express) {
    HelpExpress(patience);
  } else {
    Help(uid, patience);
  }
  return Status::Ok();
}

Status Group::Accept(std::unique_ptr<Operation> operation, bool wake_thread,
                     uint64_t* uid, bool* express) {
  if (faults_->any()) faults_->AtSubmission(submissions_.fetch_add(1));
  device_.Prepare(operation.get());
  const uint64_t name =
      HashBytes(operation->name.data(), operation->name.size());
  operation->submitted_ns = NowNs();
  Announcement announcement = {0, operation->Digest(), operation->submitted_ns};
  bool announce = true;
  const bool joins = operation->kind == TFR_JOIN;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (failure_->any()) return Blame(*operation, failure_->status());
    if (joined_) return HasJoined(*operation);
    announcement.uid = joins ? JoinUid() : HashCombine(name, uses_[name]++);
    operation->uid = announcement.uid;
    if (uid != nullptr) *uid = announcement.uid;
    pending_.push_back(std::move(operation));
    if (wake_thread) thread_needed_ = true;
    if (express != nullptr && TryExpress(*pending_.back(), announcement)) {
      *express = true;
      announce = false;
    } else if (joins) {
      joined_ = true;
      announce = MustAnnounceJoin();
    } else if (announced_ == Agreement::kWindow) {
      backlog_.push_back(announcement);
      announce = false;
    } else {
      ++announced_;
    }
  }
  if (announce) joins ? AnnounceJoin() : Announce(announcement);
  if (express == nullptr || !*express) AnswerExpress();
  if (wake_thread) wake_.notify_one();
  return Status::Ok();
}

void Group::Announce(const Announcement& announcement) {
  bool logged = false;
  const Status status = announcer_.Announce(announcement, &logged);
  // The agreement is broken for all: that ends the world, and with it this
  // operation, which is pending by now.
  if (!status.ok()) {
    AbortWorld(status);
    return;
  }
  if (logged) local_->RingAll();
}

void Group::OnGo(const LogEntry& entry) {
  LogEntry heard = entry;
  heard.agreed_ns = NowNs();
  const Status appended = agreement_.Append(heard);
  if (!appended.ok()) AbortWorld(appended);
  local_->RingAll();
}

bool Group::IsPending(uint64_t uid) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Nobody waits for a rank that has joined.
  if (join_announced_) return true;
  // A join waits for ranks that do nothing, not for those that wait for others.
  if (uid == JoinUid()) return running_ || !pending_.empty();
  return std::any_of(pending_.begin(), pending_.end(),
                     [uid](const auto& one) { return one->uid == uid; });
}

void Group::OnFailure() {
  local_->RingSelf();
  WakeThread();
}

void Group::WakeThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    thread_needed_ = true;
  }
  wake_.notify_one();
}

// --- running them -----------------------------------------------------------

bool Group::TryBecomeExecutor() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (executing_) return false;
  executing_ = true;
  return true;
}

void Group::ReleaseExecutor() {
  bool thread_needed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    thread_needed = ReleaseExecutorLocked();
  }
  if (thread_needed) wake_.notify_one();
}

bool Group::ReleaseExecutorLocked() {
  executing_ = false;
  // Operations of other callers go on in the engine's thread.
  thread_needed_ = thread_needed_ || !pending_.empty();
  return thread_needed_ || stopping_;
}

void Group::ThreadMain() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (bool last = false; !last;) {
    Await(&wake_, &lock,
          [this] { return (stopping_ || thread_needed_) && !executing_; });
    last = stopping_;  // then this thread stays the executor
    thread_needed_ = false;
    executing_ = true;
    lock.unlock();
    Drive(nullptr);
    if (last) device_.Drain();
    if (!last) ReleaseExecutor();
    lock.lock();
  }
  ended_ = true;
  end_.notify_all();
}

void Group::Drive(const std::atomic<bool>* until) {
  for (;;) {
    if (until != nullptr && until->load(std::memory_order_acquire)) return;
    const uint64_t next = executed_.load(std::memory_order_relaxed);
    const bool stops = failure_->Stops(next);
    // Even then: others may have run what all have, and left.
    if (express_.waiting() && ExpressIsDecided()) {
      RunOrAnnounceExpress();
      continue;
    }
    if (stops) {
      FailPending();
      return;
    }
    if (agreement_.head() > next) {
      Execute(next);
      executed_.store(next + 1, std::memory_order_release);
      continue;
    }
    if (until == nullptr && !HasPending()) return;
    if (!express_.waiting()) AnswerExpress();
    WaitForLog(until);
  }
}

void Group::WaitForLog(const std::atomic<bool>* until) {
  const uint64_t next = executed_.load(std::memory_order_relaxed);
  const auto ready = [&] {
    // What a GPU has done is looked after meanwhile: it may be what is awaited.
    if (agreement_.head() > next || device_.Poll()) return true;
    if (until != nullptr && until->load(std::memory_order_seq_cst)) return true;
    if (express_.waiting()) return ExpressIsDecided();
    return has_express() && express_.IsCalled();
  };
  if (local_->Look(ready)) return;
  const auto interrupted = [&] { return failure_->Stops(next); };
  const WaitOutcome outcome =
      local_->WaitAsleep(ready, interrupted, NextStallCheck());
  if (outcome == WaitOutcome::kTimeout) CheckStalls();
}

void Group::Execute(uint64_t index) {
  const LogEntry entry = agreement_.entry(index);
  Moments moments;
  std::unique_ptr<Operation> operation =
      TakePending(entry.verdict == Verdict::kJoin ? JoinUid() : entry.uid,
                  &moments.pending);
  // Ranks that have joined run what the others have.
  if (operation == nullptr && !WithJoined(entry.verdict)) {
    AbortWorld(Internal("a collective was agreed on that is not pending"));
    return;
  }
  AnnounceBacklog();
  moments.began = NowNs();
  faults_->AtCollective(index);
  plane_.Begin(index);
  running_uid_ = entry.uid;
  Status status = RunEntry(entry, operation.get());
  // A usage error concerns this collective; any other has left the data plane
  // in the middle of something, which ends the world.
  if (!status.ok() && !IsUsageError(status)) {
    AbortWorld(Annotate(
        status, StrCat("rank ", members_->RankAt(members_->rank), ": ",
                       operation == nullptr ? "a collective of other ranks"
                                            : operation->Title())));
    if (operation != nullptr) status = Blame(*operation, failure_->status());
  }
  progress_ns_ = NowNs();
  bool announce_join = false;
  {
    // Before others hear of it: then the group is idle, unless more is pending.
    std::lock_guard<std::mutex> lock(mutex_);
    running_ = false;
    announce_join = MustAnnounceJoin();
  }
  if (announce_join) AnnounceJoin();
  if (operation == nullptr) return;
  moments.submitted = operation->submitted_ns;
  moments.agreed = entry.agreed_ns;
  moments.ended = progress_ns_;
  Count(*operation, moments, entry.last);
  const bool departs = status.ok() && operation->device > 0;
  if (!departs) Finish(operation.get(), status);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    current_ = nullptr;
  }
  if (departs) device_.Depart(std::move(operation), moments, entry.last);
}

std::unique_ptr<Operation> Group::TakePending(uint64_t uid, int64_t* since) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!pending_.empty()) *since = pending_.front()->submitted_ns;
  for (auto it = pending_.begin(); it != pending_.end(); ++it) {
    if ((*it)->uid != uid) continue;
    std::unique_ptr<Operation> operation = std::move(*it);
    pending_.erase(it);
    --announced_;
    running_ = true;
    current_ = operation.get();
    return operation;
  }
  return nullptr;
}

void Group::AnnounceBacklog() {
  Announcement next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (backlog_.empty()) return;
    next = backlog_.front();
    backlog_.pop_front();
    ++announced_;
  }
  next.now_ns = NowNs();
  Announce(next);
}

void Group::FailPending() {
  std::vector<std::unique_ptr<Operation>> failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failed.swap(pending_);
    if (express_.waiting()) express_.Release();
    backlog_.clear();
    announced_ = 0;
  }
  const Status status = failure_->status();
  for (const auto& operation : failed) {
    Finish(operation.get(), Blame(*operation, status));
  }
}

bool Group::HasPending() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !pending_.empty();
}

// The world's error, with the collective that met it unless it is named there.
Status Group::Blame(const Operation& operation, const Status& status) {
  if (status.message().find(operation.Title()) != std::string::npos) {
    return status;
  }
  return Status(status.code(),
                StrCat(operation.Title(), " failed: ", status.message()));
}

void Group::Finish(Operation* operation, const Status& status) {
  if (operation->done == nullptr) return;
  tfr_error error;
  Export(status, &error);
  operation->done(operation->done_user, &error);
}

void Group::AbortWorld(const Status& status) {
  if (control_ != nullptr) {
    control_->Abort(status.message());
  } else {
    failure_->Abort(status);
  }
}

// --- leaving ----------------------------------------------------------------

bool Group::CloseIfIdle(const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (running_ || !pending_.empty() || !closed_.ok()) return false;
  if (!device_.idle()) return false;
  closed_ = reason;
  return true;
}

void Group::Reopen() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = Status::Ok();
}

void Group::Close(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_.ok()) closed_ = reason;
  }
  // Collectives in the log have all ranks' word; later ones never had ours.
  failure_->Leave(reason, agreement_.head());
}

Status Group::Stop(Deadline deadline, uint64_t* executed) {
  if (thread_.joinable()) {
    if (!WaitForEnd(deadline)) {
      failure_->Abort(Unavailable("shutdown gave up waiting for other ranks"));
      if (!WaitForEnd(Deadline::After(options_.end_after_s))) {
        return DoesNotEnd();
      }
    }
    thread_.join();
  }
  *executed = executed_.load(std::memory_order_acquire);
  return Status::Ok();
}

bool Group::WaitForEnd(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
  return end_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                       [this] { return ended_; });
}

Status Group::DoesNotEnd() {
  std::lock_guard<std::mutex> lock(mutex_);
  return Unavailable(
      StrCat(current_ == nullptr ? "an operation" : current_->Title(),
             " was aborted but has not ended within ", options_.end_after_s,
             " s; is a function stuck that it calls when it is done?"));
}

}  // namespace tfring
