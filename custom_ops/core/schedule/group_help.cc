// Collectives that the thread which waits for them or has submitted them runs
// by itself.
//
// A hand-over to the engine's thread and back costs tens of microseconds, a
// small collective one or two. So whoever submits one looks for a moment
// whether the other ranks have it too, and if so runs it. What takes longer, or
// is large, is left to the engine's thread as before: no caller is kept for
// long. A thread that finds another one executing has nothing to do; whoever
// executes sees to all that is pending, or hands it over.
#include <chrono>
#include <utility>

#include "custom_ops/core/schedule/group.h"

namespace tfring {
namespace {

// What a thread with other things to do may run: some ten microseconds.
constexpr uint64_t kLookBytes = 64 * 1024;
// Above this, a hand-over does not matter.
constexpr uint64_t kLingerBytes = 4 * 1024 * 1024;

// A caller whose operation runs elsewhere sees to it this often that somebody
// runs it.
constexpr std::chrono::seconds kLookAgain{5};

// Others may send more than this rank does.
bool Gathers(const Operation& operation) {
  return operation.kind == TFR_ALLGATHER || operation.kind == TFR_ALLTOALL;
}

struct RunWaiter {
  std::mutex mutex;
  std::condition_variable finished;
  std::atomic<bool> done{false};
  Status status;

  static void Done(void* user, const tfr_error* error) {
    auto* waiter = static_cast<RunWaiter*>(user);
    std::lock_guard<std::mutex> lock(waiter->mutex);
    if (error->code != TFR_OK) {
      waiter->status = Status(static_cast<tfr_code>(error->code), error->text);
    }
    waiter->done.store(true, std::memory_order_release);
    waiter->finished.notify_one();
  }
};

}  // namespace

Status Group::Run(std::unique_ptr<Operation>* operation) {
  RunWaiter waiter;
  (*operation)->done = &RunWaiter::Done;
  (*operation)->done_user = &waiter;
  bool express = false;
  const bool may_express = MayExpress(**operation);
  TFR_RETURN_IF_ERROR(Accept(std::move(*operation), /*wake_thread=*/false,
                             nullptr, may_express ? &express : nullptr));
  if (express && LookAtExpress() && express_.Count() == Express::Votes::kAll) {
    *operation = RunExpress(/*release=*/true);
    return Status::Ok();
  }
  const auto done = [&waiter] { return waiter.done.load(); };
  for (;;) {
    if (std::exchange(express, false) || TryBecomeExecutor()) {
      Drive(&waiter.done);
      ReleaseExecutor();
    }
    // Also when this thread drove: whoever set `done` must have let go of it.
    std::unique_lock<std::mutex> lock(waiter.mutex);
    if (waiter.finished.wait_for(lock, kLookAgain, done)) return waiter.status;
  }
}

bool Group::MayHelp(const Operation& operation) const {
  // What a GPU does takes its time, and the first such collective much.
  if (operation.device > 0) return false;
  switch (operation.patience) {
    case TFR_LOOK:
      // Other hosts answer later than a look lasts.
      return members_->host_count() == 1 && !Gathers(operation) &&
             operation.InputBytes() <= kLookBytes;
    case TFR_LINGER:
      return operation.InputBytes() <= kLingerBytes;
    default:
      return false;
  }
}

void Group::Help(uint64_t uid, int32_t patience) {
  if (!TryBecomeExecutor()) return;
  const Deadline deadline = Deadline::After(kLingerSeconds);
  bool done = false;
  while (!done && AwaitBriefly(patience, deadline)) {
    const uint64_t next = executed_.load(std::memory_order_relaxed);
    const LogEntry entry = agreement_.entry(next);
    if (!IsHelped(entry.uid)) break;
    Execute(next);
    executed_.store(next + 1, std::memory_order_release);
    done = entry.uid == uid;
  }
  ReleaseExecutor();
}

// Whether the log has an entry to run.
bool Group::AwaitBriefly(int32_t patience, Deadline deadline) {
  const uint64_t next = executed_.load(std::memory_order_relaxed);
  if (failure_->Stops(next)) return false;
  const auto ready = [&] { return agreement_.head() > next; };
  if (patience == TFR_LOOK) return local_->Look(ready);
  const auto interrupted = [&] { return failure_->Stops(next); };
  return local_->Wait(ready, interrupted, deadline) == WaitOutcome::kReady;
}

// Whether a submitting thread may run the operation, which may be another's.
bool Group::IsHelped(uint64_t uid) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& operation : pending_) {
    if (operation->uid == uid) return MayHelp(*operation);
  }
  return false;
}

}  // namespace tfring
