// A job of pretended ranks. What they say to each other and in which order they
// run what they have is decided by the engine's own code: on each host an
// Agreement, on each rank an Announcer and a Control, on rank 0 a Hub. Messages
// are the engine's bytes; only the wire, the processors and the clock are
// pretended, at the prices of a CostModel.
#ifndef TFRING_TESTS_SIMULATOR_PRETENDED_WORLD_H_
#define TFRING_TESTS_SIMULATOR_PRETENDED_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cost_model.h"
#include "custom_ops/core/common/members.h"
#include "custom_ops/core/schedule/agreement.h"
#include "custom_ops/core/schedule/announcer.h"
#include "custom_ops/core/schedule/control.h"
#include "custom_ops/core/schedule/failure.h"
#include "event_clock.h"

namespace simulator {

struct Collective {
  std::string name;
  uint64_t digest = 0;
  uint64_t bytes = 0;  // of one rank
};

struct MessageCount {
  uint64_t sent = 0;
  uint64_t received = 0;
};

// When each host is done with a collective that it begins at `begins[host]`.
using Transfer = std::function<std::vector<Nanoseconds>(
    const std::vector<Nanoseconds>& begins, uint64_t bytes)>;

class PretendedWorld {
 public:
  PretendedWorld(const CostModel& costs, EventClock* clock, Transfer transfer);
  ~PretendedWorld();

  // The rank has the collective now. A rank may have any number pending.
  void Submit(int rank, const Collective& collective);
  // Called when a host's ranks are done with a collective.
  void OnDone(std::function<void(int host, const Collective& collective)> f) {
    on_done_ = std::move(f);
  }

  // What a host's ranks have run, in order.
  const std::vector<uint64_t>& RunOn(int host) const;
  // Collectives that some rank of a host ran without having submitted them.
  uint64_t not_pending() const { return not_pending_; }
  bool failed() const { return failures_.aborted(); }
  const MessageCount& MessagesOf(int rank) const;
  // How long rank 0's thread was busy with control messages.
  Nanoseconds hub_busy() const;

 private:
  class Wire;
  class HostEvents;
  struct Host;
  struct Rank;
  struct Running {
    std::vector<Nanoseconds> begins;
    int hosts = 0;
  };

  void RunNext(int host);
  void Begin(int host);
  void End(int host, uint64_t uid);

  const CostModel costs_;
  EventClock* const clock_;
  const Transfer transfer_;
  std::function<void(int, const Collective&)> on_done_;
  tfring::Failures failures_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unordered_map<uint64_t, Collective> collectives_;  // by uid
  std::unordered_map<uint64_t, Running> running_;         // by uid
  uint64_t not_pending_ = 0;
};

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_PRETENDED_WORLD_H_
