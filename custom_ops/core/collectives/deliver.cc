#include "custom_ops/core/collectives/deliver.h"

#include <algorithm>
#include <utility>

#include "custom_ops/core/collectives/host_transfers.h"
#include "custom_ops/core/collectives/partition.h"
#include "custom_ops/core/collectives/stream.h"

namespace tfring {
namespace {

// Numbers the ranks that each rank sends to, its next one first, so that where
// destinations take turns they are not all the same: [from][to].
std::vector<std::vector<uint64_t>> NumberParts(const DeliverJob& job,
                                               uint64_t* most) {
  const size_t size = job.bytes.size();
  std::vector<std::vector<uint64_t>> parts(size, std::vector<uint64_t>(size));
  *most = 0;
  for (size_t from = 0; from < size; ++from) {
    uint64_t used = 0;
    for (size_t i = 1; i < size; ++i) {
      const size_t to = (from + i) % size;
      if (job.bytes[from][to] > 0) parts[from][to] = used++;
    }
    *most = std::max(*most, used);
  }
  return parts;
}

class Deliverer {
 public:
  Deliverer(DataPlane* plane, const DeliverJob& job,
            std::vector<std::vector<uint64_t>> parts, uint64_t most)
      : plane_(plane),
        job_(job),
        members_(plane->members()),
        parts_(std::move(parts)),
        partition_(plane->meeting_chunk_bytes(), most),
        transfers_(plane) {
    for (size_t from = 0; from < job_.bytes.size(); ++from) {
      for (size_t to = 0; to < job_.bytes.size(); ++to) {
        if (from != to) most_ = std::max(most_, job_.bytes[from][to]);
      }
    }
  }

  uint64_t steps() const { return partition_.StepsFor(most_); }

  Status CopyIn(uint64_t step, uint64_t chunk) {
    const int me = members_.rank;
    uint64_t bytes = 0;
    for (int to = 0; to < members_.size; ++to) {
      bytes += RangeOf(me, to, step).size();
    }
    plane_->StoreForOthers(bytes, [&](Stores stores) {
      for (int to = 0; to < members_.size; ++to) {
        const Range range = RangeOf(me, to, step);
        if (range.empty()) continue;
        job_.read(to, range.begin, range.end, PlaceOf(me, to, chunk), stores);
      }
    });
    plane_->Advance(&RankState::staged, chunk + 1);
    return Status::Ok();
  }

  // Leader: sends to each host what is for its ranks.
  Status PostExchange(uint64_t step, uint64_t chunk) {
    if (!plane_->Exchanges(step)) return Status::Ok();
    TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
    const int here = members_.host;
    for (int h = 0; h < members_.host_count(); ++h) {
      if (h == here) continue;
      transfers_.Receive(h, chunk, PartsBetween(h, here, step, chunk));
      transfers_.Send(h, chunk, PartsBetween(here, h, step, chunk));
    }
    return plane_->PokeHosts();
  }

  Status AwaitExchange(uint64_t step, uint64_t chunk) {
    if (!plane_->Exchanges(step)) return Status::Ok();
    TFR_RETURN_IF_ERROR(transfers_.Await(chunk));
    plane_->Advance(&RankState::exchanged, chunk + 1);
    return Status::Ok();
  }

  Status CopyOut(uint64_t step, uint64_t chunk) {
    TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
    TFR_RETURN_IF_ERROR(plane_->AwaitExchanged(step, chunk));
    const int me = members_.rank;
    for (int from = 0; from < members_.size; ++from) {
      const Range range = RangeOf(from, me, step);
      if (!range.empty()) {
        job_.write(from, range.begin, range.end, PlaceOf(from, me, chunk));
      }
    }
    plane_->Advance(&RankState::taken, chunk + 1);
    return Status::Ok();
  }

 private:
  Range RangeOf(int from, int to, uint64_t step) const {
    if (from == to) return {0, 0};
    const auto f = static_cast<size_t>(from);
    const auto t = static_cast<size_t>(to);
    return partition_.RangeOf(parts_[f][t], step, job_.bytes[f][t]);
  }

  char* PlaceOf(int from, int to, uint64_t chunk) const {
    const uint64_t part =
        parts_[static_cast<size_t>(from)][static_cast<size_t>(to)];
    return plane_->ChunkOf(from, chunk) + partition_.PlaceOf(part) +
           plane_->TurnOf(chunk, most_, partition_.part_bytes());
  }

  std::vector<iovec> PartsBetween(int from_host, int to_host, uint64_t step,
                                  uint64_t chunk) const {
    std::vector<iovec> list;
    for (const int from : members_.on_host[static_cast<size_t>(from_host)]) {
      for (const int to : members_.on_host[static_cast<size_t>(to_host)]) {
        const Range range = RangeOf(from, to, step);
        if (range.empty()) continue;
        list.push_back({PlaceOf(from, to, chunk), range.end - range.begin});
      }
    }
    return list;
  }

  DataPlane* const plane_;
  const DeliverJob& job_;
  const GroupMembers& members_;
  const std::vector<std::vector<uint64_t>> parts_;  // [from][to]
  const Partition partition_;
  uint64_t most_ = 0;  // bytes from one rank to another
  HostTransfers transfers_;
};

}  // namespace

Status Deliver(DataPlane* plane, const DeliverJob& job) {
  uint64_t most = 0;
  auto parts = NumberParts(job, &most);
  Deliverer deliverer(plane, job, std::move(parts), most);
  return plane->RunMover(&deliverer);
}

}  // namespace tfring
