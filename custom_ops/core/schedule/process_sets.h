// The process sets of a world: which there are, and how they come and go.
//
// Adding and removing are collectives of the whole world that run at one place
// of its log. So every rank sees the same sets at the same place, gives them
// the same ids and numbers, and can refuse a wrong call without asking anyone.
//
// A handle holds an id, which is used again, and how often it was before.
//
// Adding: the members make memory and connections (rendezvous/subset.h), then
// all ranks tell each other whether it worked; either all register the set or
// none does. When a rank speaks of the new set, all have registered it.
// Removing: all members stop taking operations, then tell whether some are
// pending; either all drop the set or all go on taking them.
#ifndef TFRING_CORE_SCHEDULE_PROCESS_SETS_H_
#define TFRING_CORE_SCHEDULE_PROCESS_SETS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/rendezvous/bootstrap.h"
#include "custom_ops/core/schedule/membership.h"

namespace tfring {

// What all groups of a world have in common.
struct ProcessSetOptions {
  MeetingPlan plan;
  double start_timeout_s = 30;
  GroupOptions group;
  Faults faults;
};

class ProcessSets {
 public:
  using MembershipPointer = std::shared_ptr<Membership>;

  // `world` is set 0. `control` is null in a world of one.
  ProcessSets(ProcessSetOptions options, MembershipPointer world,
              Control* control, Failures* failures);

  Status Add(const std::vector<int>& ranks, int64_t* handle);
  Status Remove(int64_t handle);
  Status Info(int64_t handle, int32_t* size, int32_t* place) const;
  // INVALID_ARGUMENT: no such set, or this rank is not a member.
  Status Find(int64_t handle, MembershipPointer* out) const;

  // Those of this rank; the world is the last.
  std::vector<MembershipPointer> Memberships() const;
  // Adds the numbers of all sets, those of removed ones too.
  void AddStats(tfr_stats* stats) const;
  void AddWaits(uint64_t* ns) const;  // for each rank of the job
  // In a forked child: only closes descriptors.
  void CloseAll();

 private:
  struct Set {
    int64_t handle;
    uint64_t number;
    std::vector<int> ranks;
    MembershipPointer membership;  // null: this rank is not a member
  };

  Status CheckNew(const std::vector<int>& ranks) const;
  // Null: there is none, or not any more. Needs mutex_.
  const Set* At(int64_t handle) const;
  Status NoSuchSet(int64_t handle) const;  // needs mutex_
  Status CheckOld(int64_t handle) const;
  Status RunAdd(DataPlane* plane, const std::vector<int>& ranks,
                int64_t* handle);
  Status RunRemove(DataPlane* plane, int64_t handle);
  // Null membership where this rank is none.
  Status Form(DataPlane* plane, const GroupMembers& members, int32_t id,
              uint64_t number, MembershipPointer* membership);
  double MeetSeconds() const;
  int64_t NextHandle() const;
  void Register(Set set);
  void Unregister(int64_t handle);
  void Retire(const MembershipPointer& membership);
  void Keep(const MembershipPointer& membership);

  const ProcessSetOptions options_;
  const MembershipPointer world_;
  Control* const control_;
  Failures* const failures_;
  uint64_t next_number_ = kWorldNumber + 1;  // used by the world's executor

  mutable std::mutex mutex_;
  std::map<int32_t, Set> sets_;  // guarded by mutex_
  // Of removed sets, in the order removed; guarded by mutex_
  std::deque<int64_t> free_handles_;
  // Of removed sets, with an operation that does not end; guarded by mutex_
  std::vector<MembershipPointer> stuck_;
  tfr_stats retired_ = {};               // of removed sets; guarded by mutex_
  std::vector<uint64_t> retired_waits_;  // by rank; guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_PROCESS_SETS_H_
