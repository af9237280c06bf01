// What the collectives stand on: chunks in the memory of this host, exchanges
// with other hosts, and waits that end.
//
// All ranks of a group run the same collectives in the same order, so they
// number chunks alike without a message. One collective reserves a run of
// chunk numbers, then pushes its chunks through stages: copy in, reduce,
// exchange, copy out. The stages of neighbouring chunks overlap.
#ifndef TFRING_CORE_COLLECTIVES_DATA_PLANE_H_
#define TFRING_CORE_COLLECTIVES_DATA_PLANE_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/collectives/stage.h"
#include "custom_ops/core/collectives/store_choice.h"
#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/copy_pool.h"
#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/faults.h"
#include "custom_ops/core/transport/local_group.h"
#include "custom_ops/core/transport/mesh.h"

namespace tfring {

class DataPlane {
 public:
  // `mesh` is null on one host and on ranks that do not exchange.
  DataPlane(const GroupMembers* members, LocalGroup* local, Mesh* mesh,
            const Failure* failure, Faults* faults, double warn_after_s,
            double fail_after_s);

  // Called when a wait in the middle of a collective reaches a limit: `what`
  // has not happened for so long. After a fatal one somebody who finds out why
  // may end the world; else the wait does, a few seconds later.
  using Stuck = std::function<void(const std::string& what, bool fatal)>;
  void OnStuck(Stuck stuck) { stuck_ = std::move(stuck); }

  const GroupMembers& members() const { return *members_; }
  LocalGroup& local() const { return *local_; }
  Mesh* mesh() const { return mesh_; }
  uint64_t chunk_bytes() const { return local_->chunk_bytes(); }
  // ... where the chunks of all members meet here: less in a large group, so
  // that their memory stays bounded.
  uint64_t meeting_chunk_bytes() const { return local_->meeting_chunk_bytes(); }
  // Where a member's chunk lies here: in its slot, or, if it sits on another
  // host, in the place for what comes from there.
  char* ChunkOf(int place, uint64_t chunk) const;

  // A tfr_host_algorithm, equal on all hosts.
  void SetHostAlgorithm(int32_t algorithm) { host_algorithm_ = algorithm; }
  int32_t host_algorithm() const { return host_algorithm_; }

  // Begins the collective at place `index` of the log.
  void Begin(uint64_t index) {
    index_ = index;
    joined_.clear();
  }
  uint64_t index() const { return index_; }

  // In this collective these places have nothing to contribute and want no
  // result: their ranks have joined.
  void SetJoined(std::set<int> places) { joined_ = std::move(places); }
  const std::set<int>& joined() const { return joined_; }
  bool IsActive(int place) const { return joined_.count(place) == 0; }
  int active_count() const {
    return members_->size - static_cast<int>(joined_.size());
  }

  using Stage = tfring::Stage;
  // Pushes `steps` chunks through the stages: while chunk i is in the first
  // stage, chunk i-1 is in the second, and so on. A place is free for the
  // first stage once all local ranks have taken its former chunk.
  Status RunPipeline(uint64_t steps, const std::vector<Stage>& stages);
  // The same with an exchange between hosts in the middle, which takes its
  // time: the last of the stages before begins it, the first one after waits
  // for it. As many chunks lie between them as there is room for.
  Status RunOverHosts(uint64_t steps, std::vector<Stage> before,
                      const std::vector<Stage>& after);
  // Inside one host, in whatever order the other ranks allow: see
  // here_pipeline.h.
  Status RunHere(uint64_t steps, std::initializer_list<HereStage> stages);
  // ... those of a collective that only moves bytes: `mover` has steps(),
  // CopyIn, PostExchange, AwaitExchange (left out on one host) and CopyOut.
  template <typename Mover>
  Status RunMover(Mover* mover) {
    const Stage copy_in = [mover](uint64_t step, uint64_t chunk) {
      return mover->CopyIn(step, chunk);
    };
    const Stage post = [mover](uint64_t step, uint64_t chunk) {
      return mover->PostExchange(step, chunk);
    };
    const Stage await = [mover](uint64_t step, uint64_t chunk) {
      return mover->AwaitExchange(step, chunk);
    };
    const Stage copy_out = [mover](uint64_t step, uint64_t chunk) {
      return mover->CopyOut(step, chunk);
    };
    if (members_->host_count() > 1) {
      return RunOverHosts(mover->steps(), {copy_in, post}, {await, copy_out});
    }
    return RunHere(mover->steps(),
                   {{nullptr, copy_in}, {&RankState::staged, copy_out}});
  }

  // Calls f(part) for parts of a range of bytes that is passed over, on several
  // threads where this rank has them and the range is worth it.
  template <typename F>
  void ForParts(const Range& range, F&& f) {
    const uint64_t bytes = range.end - range.begin;
    const auto parts = static_cast<uint64_t>(pool_.threads());
    if (parts == 1 || bytes < parts * kLeastPart) return f(range);
    pool_.Run([&](int part) {
      const auto p = static_cast<uint64_t>(part);
      f(Range{ShareBegin(range.begin, range.end, p, parts),
              ShareBegin(range.begin, range.end, p + 1, parts)});
    });
  }

  // Calls pass(stores), which stores `bytes` that others are to read.
  template <typename F>
  void StoreForOthers(uint64_t bytes, F&& pass) {
    const bool few = bytes < StoreChoice::kLeastBytes;
    if (few || local_->local_size() == 1) return pass(Stores::kPlain);
    const Stores stores = store_choice_.Next();
    const int64_t begin = NowNs();
    pass(stores);
    store_choice_.Stored(stores, bytes, NowNs() - begin);
  }
  // ... between other work.
  Stores StoresForOthers() const { return store_choice_.preferred(); }

  // Where in its part of a place, of `room` bytes, a chunk begins if no chunk
  // of the collective has more than `bytes` there. Few bytes take turns through
  // the whole part: lines that peers have just read are dear to store.
  uint64_t TurnOf(uint64_t chunk, uint64_t bytes, uint64_t room) const;

  // Waits until a local rank's counter is at least `value`.
  Status Await(int local, Counter RankState::* counter, uint64_t value);
  // ... all local ranks' (this one's own is known to be).
  Status AwaitAll(Counter RankState::* counter, uint64_t value);
  // This rank's counter for chunk numbers below `value` is done.
  void Advance(Counter RankState::* counter, uint64_t value) {
    local_->Advance(counter, value);
  }

  // Over several hosts: the leaders of a host take turns at the chunks of a
  // collective. Is it this rank's turn?
  bool Exchanges(uint64_t step) const {
    return static_cast<uint64_t>(local_->local_rank()) == LeaderOf(step);
  }
  uint64_t leaders() const { return leaders_; }
  // Which of its connections to a host a leader uses for a chunk: they take
  // turns. The chunks that are its own are `leaders` apart.
  static uint64_t StripeOf(uint64_t chunk, uint64_t leaders) {
    return chunk / leaders;
  }
  // Waits until the leader whose turn it is has exchanged the step's chunk.
  Status AwaitExchanged(uint64_t step, uint64_t chunk) {
    if (members_->host_count() == 1 || Exchanges(step)) return Status::Ok();
    return Await(static_cast<int>(LeaderOf(step)), &RankState::exchanged,
                 chunk + 1);
  }

  // Leader only: a message of a chunk to another host, and the place for one
  // from there, which belongs to the step of that name in the plan of both.
  // `*pending` goes down by one when it is done.
  void SendTo(int host, uint64_t chunk, uint64_t step,
              const std::vector<iovec>& parts, int* pending) {
    mesh_->Send(host, StripeOf(chunk, leaders_), TagOf(chunk, step), parts,
                pending);
  }
  void ReceiveFrom(int host, uint64_t chunk, uint64_t step,
                   std::vector<iovec> parts, int* pending) {
    mesh_->Receive(host, StripeOf(chunk, leaders_), TagOf(chunk, step),
                   std::move(parts), pending);
  }
  // Moves what can be moved of these without waiting.
  Status PokeHosts() { return mesh_->Poke(index_); }
  // Waits until some of these have moved.
  Status AwaitHosts();

 private:
  // Steps of one chunk: two for every host but one, at most.
  static constexpr int kStepBits = 20;
  static uint64_t TagOf(uint64_t chunk, uint64_t step) {
    return ((chunk + 1) << kStepBits) + step;
  }
  uint64_t LeaderOf(uint64_t step) const { return step % leaders_; }
  // Telling another thread costs as much as passing over this many bytes.
  static constexpr uint64_t kLeastPart = 16 * 1024;

  Status AwaitAny(const Goals& goals, int of);
  template <typename Wait>
  Status WaitWithLimits(Wait&& wait);
  void ReportStuck(const std::string& what, bool fatal) const;

  const GroupMembers* const members_;
  const uint64_t leaders_;  // of each host
  LocalGroup* const local_;
  Mesh* const mesh_;
  const Failure* const failure_;
  Faults* const faults_;
  const double warn_after_s_;
  const double fail_after_s_;
  Stuck stuck_;
  int32_t host_algorithm_ = 0;
  CopyPool pool_;
  StoreChoice store_choice_;
  uint64_t index_ = 0;
  std::set<int> joined_;
  uint64_t next_chunk_ = 0;
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_DATA_PLANE_H_
