#include "pretended_world.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "custom_ops/core/common/hash.h"
#include "custom_ops/core/rendezvous/identity.h"

namespace simulator {
namespace {

using tfring::Agreement;
using tfring::GroupMembers;
using tfring::kWorldNumber;

// Zeroed pages that nobody touches cost nothing, so hosts are cheap.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  const size_t bytes_;
  void* const data_;
};

GroupMembers AllMembers(const CostModel& costs) {
  std::vector<std::string> hosts;
  for (int r = 0; r < costs.ranks(); ++r) {
    hosts.push_back(std::to_string(costs.host_of(r)));
  }
  return tfring::MembersOf(0, hosts, hosts);
}

// What ranks other than rank 0 use of their picture: who they are and how many
// hosts there are. The whole of it for each rank would be 4,096^2 entries.
GroupMembers OwnMembers(const CostModel& costs, int rank) {
  GroupMembers members;
  members.rank = rank;
  members.size = costs.ranks();
  members.host = costs.host_of(rank);
  members.on_host.resize(static_cast<size_t>(costs.hosts));
  return members;
}

}  // namespace

struct PretendedWorld::Host {
  explicit Host(int ranks)
      : memory(Agreement::Bytes(ranks)), agreement(memory.data(), ranks) {
    agreement.Initialize();
  }

  const Pages memory;
  Agreement agreement;
  std::vector<uint64_t> executed;
  bool busy = false;
};

// What a rank's group is told by its side channel.
class PretendedWorld::HostEvents : public tfring::GroupEvents {
 public:
  HostEvents(PretendedWorld* world, int host) : world_(world), host_(host) {}

  void OnGo(const tfring::LogEntry& entry) override {
    Host& host = *world_->hosts_[static_cast<size_t>(host_)];
    const tfring::Status appended = host.agreement.Append(entry);
    if (!appended.ok()) world_->failures_.Abort(appended);
    world_->RunNext(host_);
  }
  bool IsPending(uint64_t) override { return true; }
  void OnLeave(const tfring::Status&, uint64_t) override {}

 private:
  PretendedWorld* const world_;
  const int host_;
};

// A rank's side channel. Its thread does one thing at a time: while it handles
// a message, or sends one, others wait for it.
class PretendedWorld::Wire : public tfring::Control {
 public:
  Wire(PretendedWorld* world, const GroupMembers* members)
      : Control(members, &world->failures_), world_(world) {}

  MessageCount count;
  Nanoseconds busy = 0;

 private:
  // From when on the thread can do `work`; it is busy until then plus `work`.
  Nanoseconds Work(Nanoseconds work) {
    free_ = std::max(free_, world_->clock_->now()) + work;
    busy += work;
    return free_;
  }

  void Send(int rank, const std::string& bytes) override;

  void Arrive(int from, const std::string& bytes) {
    ++count.received;
    const Nanoseconds handled =
        Work(CostModel::Ns(world_->costs_.control_handle_us));
    world_->clock_->At(handled, [=] {
      std::string received = bytes;
      if (!Receive(from, &received) || !received.empty()) {
        world_->failures_.Abort(tfring::Internal("a message is not whole"));
      }
    });
  }

  void OnInquiry() override {}
  void OnRankLeft(int) override {}

  PretendedWorld* const world_;
  Nanoseconds free_ = 0;
};

struct PretendedWorld::Rank {
  Rank(PretendedWorld* world, GroupMembers own, Agreement* agreement)
      : members(std::move(own)),
        announcer(&members, kWorldNumber, agreement),
        wire(std::make_unique<Wire>(world, &members)) {
    announcer.SetControl(wire.get());
  }

  const GroupMembers members;
  tfring::Announcer announcer;
  std::unique_ptr<Wire> wire;
  std::unordered_map<std::string, uint64_t> uses;  // of a name
  std::set<uint64_t> pending;
};

void PretendedWorld::Wire::Send(int rank, const std::string& bytes) {
  ++count.sent;
  const CostModel& costs = world_->costs_;
  const Nanoseconds sent = Work(CostModel::Ns(costs.control_send_us));
  const int from = members().rank;
  Wire* to = world_->ranks_[static_cast<size_t>(rank)]->wire.get();
  world_->clock_->At(sent + CostModel::Ns(costs.latency_us),
                     [=] { to->Arrive(from, bytes); });
}

PretendedWorld::PretendedWorld(const CostModel& costs, EventClock* clock,
                               Transfer transfer)
    : costs_(costs), clock_(clock), transfer_(std::move(transfer)) {
  for (int h = 0; h < costs.hosts; ++h) {
    hosts_.push_back(std::make_unique<Host>(costs.ranks_per_host));
  }
  for (int r = 0; r < costs.ranks(); ++r) {
    const int host = costs.host_of(r);
    ranks_.push_back(std::make_unique<Rank>(
        this, r == 0 ? AllMembers(costs) : OwnMembers(costs, r),
        &hosts_[static_cast<size_t>(host)]->agreement));
    // Nobody speaks to a rank that leads no host.
    if (r % costs.ranks_per_host != 0) continue;
    const Rank& rank = *ranks_.back();
    rank.wire->AddGroup(std::make_shared<tfring::ControlGroup>(
        kWorldNumber, rank.members, std::make_shared<HostEvents>(this, host)));
  }
}

PretendedWorld::~PretendedWorld() = default;

void PretendedWorld::Submit(int rank, const Collective& collective) {
  Rank& self = *ranks_[static_cast<size_t>(rank)];
  const uint64_t name =
      tfring::HashBytes(collective.name.data(), collective.name.size());
  const uint64_t uid = tfring::HashCombine(name, self.uses[collective.name]++);
  collectives_.emplace(uid, collective);
  self.pending.insert(uid);
  const auto announce = [this, rank, uid, digest = collective.digest] {
    bool logged = false;
    const tfring::Status status =
        ranks_[static_cast<size_t>(rank)]->announcer.Announce({uid, digest},
                                                              &logged);
    if (!status.ok()) failures_.Abort(status);
    if (logged) RunNext(costs_.host_of(rank));
  };
  clock_->At(clock_->now() + CostModel::Ns(costs_.announce_us), announce);
}

// A host's ranks run the log together: each collective needs them all.
void PretendedWorld::RunNext(int host) {
  Host& self = *hosts_[static_cast<size_t>(host)];
  if (self.busy || self.agreement.head() <= self.executed.size()) return;
  self.busy = true;
  clock_->At(clock_->now() + CostModel::Ns(costs_.wake_us),
             [=] { Begin(host); });
}

void PretendedWorld::Begin(int host) {
  Host& self = *hosts_[static_cast<size_t>(host)];
  const uint64_t uid = self.agreement.entry(self.executed.size()).uid;
  for (int local = 0; local < costs_.ranks_per_host; ++local) {
    const int rank = host * costs_.ranks_per_host + local;
    not_pending_ += ranks_[static_cast<size_t>(rank)]->pending.erase(uid) == 0;
  }
  Running& running = running_[uid];
  running.begins.resize(hosts_.size());
  running.begins[static_cast<size_t>(host)] = clock_->now();
  if (++running.hosts < costs_.hosts) return;
  // Nobody can be done before the last has begun, so this is early enough.
  const std::vector<Nanoseconds> ends =
      transfer_(running.begins, collectives_.at(uid).bytes);
  running_.erase(uid);
  for (int h = 0; h < costs_.hosts; ++h) {
    clock_->At(std::max(ends[static_cast<size_t>(h)], clock_->now()),
               [=] { End(h, uid); });
  }
}

void PretendedWorld::End(int host, uint64_t uid) {
  Host& self = *hosts_[static_cast<size_t>(host)];
  self.executed.push_back(uid);
  self.busy = false;
  if (on_done_) on_done_(host, collectives_.at(uid));
  RunNext(host);
}

const std::vector<uint64_t>& PretendedWorld::RunOn(int host) const {
  return hosts_[static_cast<size_t>(host)]->executed;
}

const MessageCount& PretendedWorld::MessagesOf(int rank) const {
  return ranks_[static_cast<size_t>(rank)]->wire->count;
}

Nanoseconds PretendedWorld::hub_busy() const { return ranks_[0]->wire->busy; }

}  // namespace simulator
