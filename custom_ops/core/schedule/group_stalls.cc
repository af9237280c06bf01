// Collectives that wait too long: who is missing, and when to give up.
#include <algorithm>
#include <limits>

#include "custom_ops/core/schedule/group.h"

namespace tfring {
namespace {

int64_t ToNs(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

Deadline Group::NextStallCheck() {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const auto& operation : pending_) {
    const int64_t begin = WaitsSince(*operation);
    if (options_.warn_after_s > 0 && !operation->warned) {
      next = std::min(next, begin + ToNs(options_.warn_after_s));
    }
    if (options_.fail_after_s > 0) {
      // The log has advanced under a join that had been reported.
      if (NowNs() - begin < ToNs(options_.fail_after_s)) {
        operation->reported = false;
      }
      const double wait = operation->reported ? OverdueAfter(*operation)
                                              : options_.fail_after_s;
      next = std::min(next, begin + ToNs(wait));
    }
  }
  return Deadline::AtNs(next);
}

void Group::CheckStalls() {
  // Handled outside the lock; only this thread removes operations.
  std::vector<Operation*> stalled;
  const int64_t now = NowNs();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& operation : pending_) {
      const int64_t waited = now - WaitsSince(*operation);
      const bool warn = options_.warn_after_s > 0 && !operation->warned &&
                        waited >= ToNs(options_.warn_after_s);
      const bool fail =
          options_.fail_after_s > 0 && waited >= ToNs(options_.fail_after_s);
      if (warn || fail) stalled.push_back(operation.get());
    }
  }
  for (Operation* operation : stalled) {
    const int64_t waited = now - WaitsSince(*operation);
    const bool fatal =
        options_.fail_after_s > 0 && waited >= ToNs(options_.fail_after_s);
    const bool overdue = fatal && waited >= ToNs(OverdueAfter(*operation));
    ReportStall(*operation, fatal, overdue);
    operation->warned = true;
    operation->reported = operation->reported || fatal;
  }
}

void Group::ReportStall(const Operation& operation, bool fatal, bool overdue) {
  if (control_ == nullptr) return;  // a world of one waits for nobody
  const double limit = fatal ? options_.fail_after_s : options_.warn_after_s;
  const std::string title =
      StrCat(operation.Title(), " (", operation.Describe(), "): after ", limit,
             fatal ? " s, the limit, it still" : " s it still");
  if (overdue) {
    control_->Abort(title + " waits, and rank 0 does not say for whom");
  } else {
    control_->Stalled(options_.number, operation.uid, title, fatal,
                      operation.kind == TFR_JOIN);
  }
}

// The collective that runs here does not get on.
void Group::ReportStuck(const std::string& what, bool fatal) {
  if (control_ == nullptr) return;
  std::string title = "a collective of other ranks";
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (current_ != nullptr) {
      title = StrCat(current_->Title(), " (", current_->Describe(), ")");
    }
  }
  control_->Stuck(options_.number, running_uid_,
                  StrCat("rank ", members_->RankAt(members_->rank), ": ", title,
                         ": ", what),
                  fatal);
}

}  // namespace tfring
