// What ranks and rank 0 say to each other, and what they do when they hear it:
// who failed or left, and, when a group has several hosts, the agreement
// between them: "my host has it" to rank 0, "run it" back. On one host nothing
// is said while all is well.
//
// Knows nothing of how messages travel (side_channel.h does), so that a
// simulated network can carry them, too.
//
// One side channel serves all groups of a world; messages carry the group's
// number. Rank 0 decides for every group, a member or not.
#ifndef TFRING_CORE_SCHEDULE_CONTROL_H_
#define TFRING_CORE_SCHEDULE_CONTROL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/agreement.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/hub.h"

namespace tfring {

// The group of all ranks. Other groups have other numbers, none twice in the
// life of a world, so a late message is never taken for that of another group.
constexpr uint64_t kWorldNumber = 0;

// What the side channel asks of a member of a group; called from its thread.
class GroupEvents {
 public:
  virtual ~GroupEvents() = default;
  // Host leader: all hosts have the collective; same order on every leader.
  virtual void OnGo(const LogEntry& entry) = 0;
  // Has this rank submitted the collective, and does it still wait?
  virtual bool IsPending(uint64_t uid) = 0;
  // A rank has left after its part of the first `executed` collectives.
  virtual void OnLeave(const Status& status, uint64_t executed) = 0;
};

// A group as the side channel knows it.
struct ControlGroup {
  ControlGroup(uint64_t group_number, GroupMembers group_members,
               std::shared_ptr<GroupEvents> group_events)
      : number(group_number),
        members(std::move(group_members)),
        events(std::move(group_events)),
        hub(&members) {}

  const uint64_t number;
  const GroupMembers members;
  const std::shared_ptr<GroupEvents> events;  // null: this rank is no member
  Hub hub;                                    // used on rank 0
  std::mutex order;  // rank 0: keeps all leaders' logs in one order
};

class Control {
 public:
  // `members` are all ranks.
  Control(const GroupMembers* members, Failures* failures)
      : members_(members), failures_(failures) {}
  virtual ~Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Before any member speaks of the group: on its members and on rank 0.
  void AddGroup(std::shared_ptr<ControlGroup> group);
  // What is still said of it is ignored.
  void RemoveGroup(uint64_t number);

  // All members on this host have the collective, or have joined.
  void HostReady(uint64_t number, const Completion& completion, bool joined);
  // All members on this host have joined, this rank as the last.
  void HostJoined(uint64_t number);
  // A collective waits for others too long. Rank 0 asks all members for it and
  // warns, or, if fatal, ends the world naming those that do not have it.
  void Stalled(uint64_t number, uint64_t uid, const std::string& title,
               bool fatal, bool is_join);
  // A collective that runs does not get on. Rank 0 asks all members whether
  // they are there and warns, or, if fatal, ends the world naming those that
  // are not.
  void Stuck(uint64_t number, uint64_t uid, const std::string& title,
             bool fatal);
  // Ends the world everywhere.
  void Abort(const std::string& text);
  // This rank leaves after its part of the group's first `executed`
  // collectives.
  void Leave(uint64_t number, uint64_t executed);
  // Rank 0 leaves: groups on several hosts cannot go on without it, even if it
  // is not a member. Their members still run what it has told them to.
  void LeaveOtherGroups();

  // Handles and removes the whole messages in `received`, which came from rank
  // `from`. False if they make no sense.
  bool Receive(int from, std::string* received);

 protected:
  // Sends an encoded message; whoever cannot be told is found dead elsewhere.
  virtual void Send(int rank, const std::string& bytes) = 0;
  // Rank 0: NextInquiry() may have become earlier.
  virtual void OnInquiry() = 0;
  // A rank has said that it leaves the world.
  virtual void OnRankLeft(int rank) = 0;

  bool is_hub() const { return members_->rank == 0; }
  const GroupMembers& members() const { return *members_; }
  std::string NameOf(int rank) const;
  // Rank 0: when ReportStalls() is worth calling again.
  Deadline NextInquiry();
  void ReportStalls();

 private:
  struct Message;
  using GroupPointer = std::shared_ptr<ControlGroup>;

  GroupPointer Find(uint64_t number);
  std::vector<GroupPointer> Groups();
  static int32_t LastOf(const Message& message, int size);
  void Handle(int from, const Message& message);
  void HandleGroup(int from, const Message& message);
  void HandleReady(ControlGroup* group, int place, const Message& message);
  void HandleJoined(ControlGroup* group, int place);
  void Go(ControlGroup* group, const LogEntry& entry);
  void HandleStall(ControlGroup* group, const Message& message);
  void HandleAsk(ControlGroup* group, const Message& message);
  void HandleLeave(int from, const Message& message);
  // Rank 0: to the ranks listed but itself and `except`.
  void Spread(const Message& message, const std::vector<int>& ranks,
              int except);
  void TellHub(const Message& message);
  void TellOfStall(uint64_t number, uint64_t uid, const std::string& title,
                   bool fatal, uint64_t extra);
  void ToHub(const Message& message);

  const GroupMembers* const members_;
  Failures* const failures_;
  std::mutex groups_mutex_;
  std::map<uint64_t, GroupPointer> groups_;  // guarded by groups_mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_CONTROL_H_
