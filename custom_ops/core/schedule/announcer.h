// How a rank tells the others what it has: those on its host by their agreement
// (agreement.h), and, where it is the last one there, rank 0 (control.h).
//
// Cost per collective of a group on H hosts: H messages to rank 0 and H back;
// none on one host. A host's ranks send one message and get one between them.
#ifndef TFRING_CORE_SCHEDULE_ANNOUNCER_H_
#define TFRING_CORE_SCHEDULE_ANNOUNCER_H_

#include <cstdint>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/agreement.h"
#include "custom_ops/core/schedule/control.h"

namespace tfring {

struct Announcement {
  uint64_t uid;
  uint64_t digest;
  int64_t now_ns = 0;  // this rank submitted it
};

class Announcer {
 public:
  // `number`: the group's, on the side channel.
  Announcer(const GroupMembers* members, uint64_t number, Agreement* agreement)
      : members_(members), number_(number), agreement_(agreement) {}

  // Before anything is announced; null in a world of one.
  void SetControl(Control* control) { control_ = control; }

  // This rank has a collective. `logged`: the host's log has grown, so its
  // ranks must be woken.
  Status Announce(const Announcement& announcement, bool* logged);
  // This rank has joined, and has nothing announced.
  Status Join(int64_t now_ns, bool* logged);

 private:
  bool one_host() const { return members_->host_count() == 1; }

  const GroupMembers* const members_;
  const uint64_t number_;
  Agreement* const agreement_;
  Control* control_ = nullptr;
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_ANNOUNCER_H_
