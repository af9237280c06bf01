// A rank's membership in a group: all that it needs to run collectives with the
// other members. Groups run at the same time; each has its own memory, log,
// engine thread and connections between hosts.
#ifndef TFRING_CORE_SCHEDULE_MEMBERSHIP_H_
#define TFRING_CORE_SCHEDULE_MEMBERSHIP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/control.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/faults.h"
#include "custom_ops/core/schedule/group.h"
#include "custom_ops/core/tfring.h"
#include "custom_ops/core/transport/mesh.h"

namespace tfring {

class Membership : public GroupEvents {
 public:
  // `data`: see Mesh; empty unless this rank exchanges with other hosts.
  Membership(const GroupMembers& members, std::unique_ptr<LocalGroup> local,
             std::vector<HostSockets> data, Faults faults, Failures* failures,
             const GroupOptions& options);
  ~Membership() override;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Makes the group known to the side channel (null in a world of one) and
  // starts its thread.
  static Status Start(const std::shared_ptr<Membership>& membership,
                      Control* control);

  Group& group() { return *group_; }
  const GroupMembers& members() const { return members_; }
  uint64_t number() const { return number_; }
  // Adds this group's numbers; `control_messages` is not a group's.
  void AddStats(tfr_stats* stats) const;
  // Adds the time waited for each rank of the job.
  void AddWaits(uint64_t* ns) const;
  // In a forked child: only closes descriptors.
  void CloseAll();

  void OnGo(const LogEntry& entry) override { group_->OnGo(entry); }
  bool IsPending(uint64_t uid) override { return group_->IsPending(uid); }
  void OnLeave(const Status& status, uint64_t executed) override {
    failure_.Leave(status, executed);
  }

 private:
  const uint64_t number_;
  const GroupMembers members_;
  Failures* const failures_;
  Failure failure_;
  Faults faults_;
  const std::unique_ptr<LocalGroup> local_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Group> group_;
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_MEMBERSHIP_H_
