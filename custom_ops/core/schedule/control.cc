#include "custom_ops/core/schedule/control.h"

#include <cstdio>
#include <utility>

#include "custom_ops/core/common/wire.h"

namespace tfring {
namespace {

enum class Type : uint32_t {
  kReady = 1,   // uid, value: digest, extra: kAlike, kSomeJoined
  kGo = 2,      // uid, value: verdict, extra: place that came last
  kStall = 3,   // uid, value: fatal, extra: kIsJoin, kRuns, text: title
  kAsk = 4,     // uid, extra: kRuns
  kHave = 5,    // uid, value: 1 if it is pending or runs there
  kAbort = 6,   // text
  kLeave = 7,   // value: rank, extra: collectives of the group executed
  kJoined = 8,  // all members of the sender's host
};

constexpr uint64_t kAlike = 1;
constexpr uint64_t kSomeJoined = 2;
constexpr uint64_t kIsJoin = 1;
constexpr uint64_t kRuns = 2;  // then whoever answers has it

constexpr uint32_t kMaxText = 1 << 16;
constexpr size_t kHeaderBytes = 40;

}  // namespace

struct Control::Message {
  Type type = Type::kAbort;
  uint64_t group = kWorldNumber;
  uint64_t uid = 0;
  uint64_t value = 0;
  uint64_t extra = 0;
  std::string text;

  std::string Encode() const {
    std::string bytes;
    const std::string cut = text.substr(0, kMaxText);
    AppendInt(static_cast<uint32_t>(type), &bytes);
    AppendInt(static_cast<uint32_t>(cut.size()), &bytes);
    AppendInt(group, &bytes);
    AppendInt(uid, &bytes);
    AppendInt(value, &bytes);
    AppendInt(extra, &bytes);
    return bytes + cut;
  }
};

// Which place came last, by what a message says of it.
int32_t Control::LastOf(const Message& message, int size) {
  const bool known = message.extra < static_cast<uint64_t>(size);
  return known ? static_cast<int32_t>(message.extra) : -1;
}

std::string Control::NameOf(int rank) const {
  const int host = members_->host_of[static_cast<size_t>(rank)];
  return StrCat("rank ", rank, " (host ",
                members_->host_names[static_cast<size_t>(host)], ")");
}

// --- the groups -------------------------------------------------------------

void Control::AddGroup(std::shared_ptr<ControlGroup> group) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  groups_[group->number] = std::move(group);
}

void Control::RemoveGroup(uint64_t number) {
  GroupPointer group;  // freed without the lock
  std::lock_guard<std::mutex> lock(groups_mutex_);
  const auto at = groups_.find(number);
  if (at == groups_.end()) return;
  group = std::move(at->second);
  groups_.erase(at);
}

Control::GroupPointer Control::Find(uint64_t number) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  const auto at = groups_.find(number);
  return at == groups_.end() ? nullptr : at->second;
}

std::vector<Control::GroupPointer> Control::Groups() {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  std::vector<GroupPointer> groups;
  for (const auto& [number, group] : groups_) groups.push_back(group);
  return groups;
}

// --- what this rank says ----------------------------------------------------

void Control::HostReady(uint64_t number, const Completion& completion,
                        bool joined) {
  Message message;
  message.type = Type::kReady;
  message.group = number;
  message.uid = completion.uid;
  message.value = completion.digest;
  message.extra = (completion.alike ? kAlike : 0) | (joined ? kSomeJoined : 0);
  TellHub(message);
}

void Control::HostJoined(uint64_t number) {
  Message message;
  message.type = Type::kJoined;
  message.group = number;
  TellHub(message);
}

void Control::Stalled(uint64_t number, uint64_t uid, const std::string& title,
                      bool fatal, bool is_join) {
  TellOfStall(number, uid, title, fatal, is_join ? kIsJoin : 0);
}

void Control::Stuck(uint64_t number, uint64_t uid, const std::string& title,
                    bool fatal) {
  TellOfStall(number, uid, title, fatal, kRuns);
}

void Control::TellOfStall(uint64_t number, uint64_t uid,
                          const std::string& title, bool fatal,
                          uint64_t extra) {
  Message message;
  message.type = Type::kStall;
  message.group = number;
  message.uid = uid;
  message.value = fatal ? 1 : 0;
  message.extra = extra;
  message.text = title;
  TellHub(message);
}

void Control::Abort(const std::string& text) {
  if (failures_->aborted()) return;
  Message message;
  message.type = Type::kAbort;
  message.text = text;
  // Others first: once this rank knows, it may shut down, and the others
  // should hear the reason rather than that.
  if (is_hub()) {
    Spread(message, members_->ranks, members_->rank);
  } else {
    ToHub(message);
  }
  failures_->Abort(Unavailable(text));
}

void Control::Leave(uint64_t number, uint64_t executed) {
  Message message;
  message.type = Type::kLeave;
  message.group = number;
  message.value = static_cast<uint64_t>(members_->rank);
  message.extra = executed;
  if (!is_hub()) {
    ToHub(message);
  } else if (const GroupPointer group = Find(number)) {
    Spread(message, group->members.ranks, members_->rank);
  }
}

void Control::LeaveOtherGroups() {
  if (!is_hub()) return;
  for (const GroupPointer& group : Groups()) {
    if (group->events == nullptr && group->members.host_count() > 1) {
      Leave(group->number, group->hub.Close());
    }
  }
}

// What this rank says of a group, also on rank 0.
void Control::TellHub(const Message& message) {
  if (is_hub()) {
    HandleGroup(members_->rank, message);
  } else {
    ToHub(message);
  }
}

void Control::ToHub(const Message& message) { Send(0, message.Encode()); }

void Control::Spread(const Message& message, const std::vector<int>& ranks,
                     int except) {
  const std::string bytes = message.Encode();
  for (const int rank : ranks) {
    if (rank != except && rank != members_->rank) Send(rank, bytes);
  }
}

// --- what others say --------------------------------------------------------

Deadline Control::NextInquiry() {
  Deadline next = Deadline::Never();
  if (!is_hub()) return next;
  for (const GroupPointer& group : Groups()) {
    next = Deadline::Earlier(next, group->hub.NextInquiry());
  }
  return next;
}

bool Control::Receive(int from, std::string* received) {
  size_t used = 0;
  while (received->size() - used >= kHeaderBytes) {
    const char* header = received->data() + used;
    const auto text_bytes = ReadInt<uint32_t>(header + 4);
    if (text_bytes > kMaxText) return false;
    if (received->size() - used < kHeaderBytes + text_bytes) break;
    Message message;
    message.type = static_cast<Type>(ReadInt<uint32_t>(header));
    message.group = ReadInt<uint64_t>(header + 8);
    message.uid = ReadInt<uint64_t>(header + 16);
    message.value = ReadInt<uint64_t>(header + 24);
    message.extra = ReadInt<uint64_t>(header + 32);
    message.text.assign(header + kHeaderBytes, text_bytes);
    used += kHeaderBytes + text_bytes;
    Handle(from, message);
  }
  received->erase(0, used);
  return true;
}

void Control::Handle(int from, const Message& message) {
  switch (message.type) {
    case Type::kAbort:
      if (is_hub()) Spread(message, members_->ranks, from);
      failures_->Abort(Unavailable(message.text));
      return;
    case Type::kLeave:
      HandleLeave(from, message);
      return;
    default:
      HandleGroup(from, message);
  }
}

// Both ends of what is said here are members, or rank 0.
void Control::HandleGroup(int from, const Message& message) {
  const GroupPointer group = Find(message.group);
  if (group == nullptr) return;
  const int place = group->members.PlaceOf(from);
  switch (message.type) {
    case Type::kReady:
      if (is_hub() && place >= 0) HandleReady(group.get(), place, message);
      return;
    case Type::kJoined:
      if (is_hub() && place >= 0) HandleJoined(group.get(), place);
      return;
    case Type::kGo:
      if (group->events != nullptr) {
        group->events->OnGo({message.uid, static_cast<Verdict>(message.value),
                             LastOf(message, group->members.size)});
      }
      return;
    case Type::kStall:
      if (is_hub()) HandleStall(group.get(), message);
      return;
    case Type::kAsk:
      HandleAsk(group.get(), message);
      return;
    case Type::kHave:
      if (is_hub() && place >= 0) {
        group->hub.Answer(message.uid, place, message.value != 0);
      }
      return;
    default:
      return;
  }
}

void Control::HandleReady(ControlGroup* group, int place,
                          const Message& message) {
  std::lock_guard<std::mutex> lock(group->order);
  const std::optional<LogEntry> entry = group->hub.HostReady(
      group->members.host_of[static_cast<size_t>(place)], message.uid,
      message.value, (message.extra & kAlike) != 0,
      (message.extra & kSomeJoined) != 0, place);
  if (entry.has_value()) Go(group, *entry);
}

void Control::HandleJoined(ControlGroup* group, int place) {
  std::lock_guard<std::mutex> lock(group->order);
  for (const LogEntry& entry : group->hub.HostJoined(
           group->members.host_of[static_cast<size_t>(place)], place)) {
    Go(group, entry);
  }
}

void Control::Go(ControlGroup* group, const LogEntry& entry) {
  Message go;
  go.type = Type::kGo;
  go.group = group->number;
  go.uid = entry.uid;
  go.value = static_cast<uint64_t>(entry.verdict);
  go.extra = static_cast<uint64_t>(entry.last);
  std::vector<int> leaders;
  for (const std::vector<int>& places : group->members.on_host) {
    leaders.push_back(group->members.RankAt(places.front()));
  }
  Spread(go, leaders, members_->rank);
  if (group->events != nullptr) group->events->OnGo(entry);
}

void Control::HandleStall(ControlGroup* group, const Message& message) {
  const bool runs = (message.extra & kRuns) != 0;
  if (!group->hub.StartInquiry(message.uid, message.text, message.value != 0,
                               (message.extra & kIsJoin) != 0, runs)) {
    return;
  }
  Message ask;
  ask.type = Type::kAsk;
  ask.group = group->number;
  ask.uid = message.uid;
  ask.extra = message.extra & kRuns;
  Spread(ask, group->members.ranks, members_->rank);
  if (group->events != nullptr) {
    group->hub.Answer(message.uid, group->members.rank,
                      runs || group->events->IsPending(message.uid));
  }
  OnInquiry();
}

void Control::HandleAsk(ControlGroup* group, const Message& message) {
  Message answer;
  answer.type = Type::kHave;
  answer.group = group->number;
  answer.uid = message.uid;
  const bool has_it =
      group->events != nullptr &&
      ((message.extra & kRuns) != 0 || group->events->IsPending(message.uid));
  answer.value = has_it ? 1 : 0;
  ToHub(answer);
}

void Control::HandleLeave(int from, const Message& message) {
  const int rank = static_cast<int>(message.value);
  if (rank < 0 || rank >= members_->size) return;
  if (rank == from && message.group == kWorldNumber) {
    OnRankLeft(from);
  }
  const GroupPointer group = Find(message.group);
  if (group == nullptr) return;
  if (is_hub()) Spread(message, group->members.ranks, from);
  if (group->events == nullptr) return;
  group->events->OnLeave(Unavailable(NameOf(rank) + " has shut down"),
                         message.extra);
}

void Control::ReportStalls() {
  for (const GroupPointer& group : Groups()) {
    for (const StallReport& report : group->hub.FinishedInquiries()) {
      if (report.fatal) {
        Abort(report.text);
      } else {
        std::fprintf(stderr, "tfring: warning: %s\n", report.text.c_str());
      }
    }
  }
}

}  // namespace tfring
