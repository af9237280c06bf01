// The ranks that run collectives together, seen from one of them: takes
// operations in any order, agrees with the others on one order, runs it.
//
// Operations run one at a time, on the thread that holds the executor: either
// the engine's own thread, which sleeps while nothing is pending, or a caller
// of Run() or, for a short while, of Submit(), which saves hand-overs between
// threads.
#ifndef TFRING_CORE_SCHEDULE_GROUP_H_
#define TFRING_CORE_SCHEDULE_GROUP_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/device_plane.h"
#include "custom_ops/core/schedule/agreement.h"
#include "custom_ops/core/schedule/announcer.h"
#include "custom_ops/core/schedule/control.h"
#include "custom_ops/core/schedule/express.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/faults.h"
#include "custom_ops/core/schedule/operation.h"
#include "custom_ops/core/schedule/recorder.h"
#include "custom_ops/core/schedule/timing.h"

namespace tfring {

struct GroupOptions {
  uint64_t number = kWorldNumber;  // of the group, on the side channel
  double warn_after_s = 60;        // 0 = never
  double fail_after_s = 300;
  // How long an operation that runs may take to end once it is aborted.
  double end_after_s = 60;
  Recorder* recorder = nullptr;  // null: nobody wants to know
  int32_t host_algorithm = TFR_HOSTS_AUTO;
  GpuOptions gpu;
};

struct GroupStats {
  std::atomic<uint64_t> collectives{0};
  std::atomic<uint64_t> tensors{0};
  std::atomic<uint64_t> payload_bytes{0};
  std::atomic<uint64_t> travel_bytes{0};
};

class Group {
 public:
  Group(const GroupMembers* members, LocalGroup* local, Mesh* mesh,
        Failure* failure, Faults* faults, const GroupOptions& options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // `control` is null in a world of one. Called once, before the first Submit.
  void Start(Control* control);

  // Calls operation->done exactly once if OK is returned, else never. Helps to
  // run it as far as operation->patience says.
  Status Submit(std::unique_ptr<Operation> operation);
  // Returns when the operation is done here. operation->done is not called.
  // Gives the operation back if it was a small one, to be used again.
  Status Run(std::unique_ptr<Operation>* operation);

  // Host leader: all hosts have the collective.
  void OnGo(const LogEntry& entry);
  // Has this rank submitted the collective, and does it still wait?
  bool IsPending(uint64_t uid);
  // Something failed: wakes whoever waits here.
  void OnFailure();

  // Takes no more operations: Submit() and Run() give `reason`. False, and
  // without effect, if some have not finished.
  bool CloseIfIdle(const Status& reason);
  void Reopen();

  // Takes no more operations and fails those that not all ranks have agreed to
  // run. The first of two steps, so that several groups can stop at once.
  void Close(const Status& reason);
  // Finishes what all ranks have agreed to run, at most until the deadline.
  // Gives the number of collectives run. UNAVAILABLE if one does not end: then
  // this group and all that it was given must stay. May be called again.
  Status Stop(Deadline deadline, uint64_t* executed);

  const GroupStats& stats() const { return stats_; }
  uint64_t pinned_bytes() { return device_.pinned_bytes(); }
  const Timing& timing() const { return timing_; }

 private:
  Status Accept(std::unique_ptr<Operation> operation, bool wake_thread,
                uint64_t* uid = nullptr, bool* express = nullptr);
  void Announce(const Announcement& announcement);
  bool TryBecomeExecutor();
  void ReleaseExecutor();
  // True if the thread must be woken. mutex_ is held.
  bool ReleaseExecutorLocked();
  void ThreadMain();
  void WakeThread();
  // Runs the log until `*until` is true, or, with null, nothing is pending.
  // The caller is the executor.
  void Drive(const std::atomic<bool>* until);
  void WaitForLog(const std::atomic<bool>* until);
  void Execute(uint64_t index);
  Status RunEntry(const LogEntry& entry, Operation* operation);
  Status RunAlike(Operation* operation);
  Status RunOnHost(Operation* operation);
  // One that a GPU worked on has ended.
  void Landed(Flight* flight, const Status& status);
  void Count(const Operation& operation, const Moments& moments, int last);
  void Record(const Operation& operation, const Moments& moments, int last);
  // `*since`: when the first of all that is pending was submitted.
  std::unique_ptr<Operation> TakePending(uint64_t uid, int64_t* since);
  bool WaitForEnd(Deadline deadline);
  Status DoesNotEnd();
  void AnnounceBacklog();
  void FailPending();
  bool HasPending();
  // No collective can finish any more.
  void AbortWorld(const Status& status);
  Status Blame(const Operation& operation, const Status& status);
  void Finish(Operation* operation, const Status& status);

  // helping (group_help.cc)
  // Others that come later than this have cost more than a hand-over does.
  static constexpr double kLingerSeconds = 1e-3;
  bool MayHelp(const Operation& operation) const;
  void Help(uint64_t uid, int32_t patience);
  bool AwaitBriefly(int32_t patience, Deadline deadline);
  bool IsHelped(uint64_t uid);

  // small ones in one round (group_express.cc)
  bool has_express() const {
    return members_->host_count() == 1 && members_->size > 1;
  }
  bool MayExpress(const Operation& operation) const;
  bool TryExpress(const Operation& operation, const Announcement& what);
  void RingForExpress();
  bool ExpressIsDecided();
  bool LookAtExpress();
  void HelpExpress(int32_t patience);
  std::unique_ptr<Operation> RunExpress(bool release);
  void RunOrAnnounceExpress();
  void AnnounceVoid();
  void AnswerExpress();

  // joining (group_join.cc)
  uint64_t JoinUid() const;
  bool MustAnnounceJoin();  // mutex_ is held
  void AnnounceJoin();
  void EndJoin(uint64_t last, Operation* operation);
  Status RunWithJoined(Verdict verdict, Operation* operation);
  int64_t WaitsSince(const Operation& operation) const;
  double OverdueAfter(const Operation& operation) const;

  // stalls (group_stalls.cc)
  Deadline NextStallCheck();
  void CheckStalls();
  void ReportStall(const Operation& operation, bool fatal, bool overdue);
  void ReportStuck(const std::string& what, bool fatal);

  const GroupMembers* const members_;
  LocalGroup* const local_;
  Failure* const failure_;
  Faults* const faults_;
  const GroupOptions options_;
  Agreement agreement_;
  Announcer announcer_;
  Express express_;
  DataPlane plane_;
  DevicePlane device_;
  Control* control_ = nullptr;

  std::mutex mutex_;
  std::condition_variable wake_;
  Status closed_;                // guarded by mutex_
  bool running_ = false;         // guarded by mutex_
  bool joined_ = false;          // guarded by mutex_
  bool join_announced_ = false;  // guarded by mutex_
  uint64_t joinings_ = 0;        // ended; guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_
  bool ended_ = false;           // the thread's work; guarded by mutex_
  bool thread_needed_ = false;   // guarded by mutex_
  std::unordered_map<uint64_t, uint64_t> uses_;  // of a name; guarded by mutex_
  // In the order submitted; short, and mostly run from the front.
  std::vector<std::unique_ptr<Operation>> pending_;  // guarded by mutex_
  std::deque<Announcement> backlog_;                 // guarded by mutex_
  uint64_t announced_ = 0;  // and not yet run; guarded by mutex_

  // The executor: one thread at a time runs the log.
  bool executing_ = false;              // guarded by mutex_
  const Operation* current_ = nullptr;  // guarded by mutex_
  std::condition_variable end_;
  std::atomic<uint64_t> executed_{0};     // written by the executor
  uint64_t running_uid_ = 0;              // the executor's
  const Operation* expressed_ = nullptr;  // of express_; the executor's
  int64_t progress_ns_ = 0;  // when the log last advanced; the executor's
  GroupStats stats_;
  Timing timing_;
  std::atomic<uint64_t> submissions_{0};  // counted for faults only
  std::thread thread_;
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_GROUP_H_
