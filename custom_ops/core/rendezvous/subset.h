// How some ranks of a running job form a group of their own. The store is not
// needed: the ranks already share a group and tell each other the little that
// they must know.
//
//   1  Offer(): the first member on each host makes the memory; if the members
//      sit on several hosts, leaders listen for those of the other hosts
//   2  every rank learns every rank's offer (the caller's part)
//   3  Meet(): the others open the memory; leaders connect in pairs
#ifndef TFRING_CORE_RENDEZVOUS_SUBSET_H_
#define TFRING_CORE_RENDEZVOUS_SUBSET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/rendezvous/bootstrap.h"
#include "custom_ops/core/rendezvous/connect.h"
#include "custom_ops/core/transport/local_group.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

class Subset {
 public:
  // `members`: this rank is one of them. `number` differs from that of every
  // other group of the job. Both pointers stay valid.
  Subset(const MeetingPlan* plan, const GroupMembers* members, uint64_t number)
      : plan_(plan), members_(members), number_(number) {}

  Status Offer(std::string* offer);
  // `offers[place]` of each member; ends early once `cancelled`.
  Status Meet(const std::vector<std::string>& offers, Deadline deadline,
              std::function<bool()> cancelled);

  // What Meet() has made; see Bootstrapped.
  std::unique_ptr<LocalGroup> local;
  std::vector<HostSockets> data;

 private:
  size_t lanes() const { return LanesOf(*members_, plan_->links); }
  Status ConnectHosts(const std::vector<std::string>& offers,
                      const ConnectOptions& options);
  Status AcceptHosts(const ConnectOptions& options);

  const MeetingPlan* const plan_;
  const GroupMembers* const members_;
  const uint64_t number_;
  Listener listener_;
};

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_SUBSET_H_
