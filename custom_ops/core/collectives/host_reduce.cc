#include "custom_ops/core/collectives/host_reduce.h"

#include <algorithm>
#include <utility>

namespace tfring {

void HostDivision::Add(size_t tensor, uint64_t at, uint64_t count,
                       uint64_t partial_bytes) {
  pieces_.back().push_back({tensor, at, packed_.back(), count});
  packed_.back() += AlignStream(count * partial_bytes);
}

Status HostReducer::ReducePartials(const HostDivision& division,
                                   uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
  const auto rank = static_cast<uint64_t>(plane_->local().local_rank());
  const auto ranks = static_cast<uint64_t>(plane_->local().local_size());
  char* partial = plane_->local().partial(chunk);
  for (const auto& pieces : division.pieces()) {
    for (const HostPiece& piece : pieces) {
      const OperationTensor& tensor = operation_.tensors[piece.tensor];
      const uint64_t first = piece.count * rank / ranks;
      const uint64_t last = piece.count * (rank + 1) / ranks;
      if (first == last || reduction_->source_count() == 0) continue;
      reduction_->ReducePartial(
          piece.tensor,
          reduction_->SourcesAt(chunk,
                                piece.at + first * tensor.staged_element_bytes),
          reduction_->source_count(),
          partial + piece.packed +
              first * reduction_->partial_bytes(piece.tensor),
          last - first);
    }
  }
  plane_->Advance(&RankState::reduced, chunk + 1);
  return Status::Ok();
}

Status HostReducer::ReduceOwn(const HostDivision& division, uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::reduced, chunk + 1));
  TFR_RETURN_IF_ERROR(Swap(division, chunk));
  Finish(division, chunk);
  return Status::Ok();
}

Status HostReducer::AwaitLeader(uint64_t value) {
  if (plane_->members().leads()) return Status::Ok();
  return plane_->Await(0, &RankState::exchanged, value);
}

Status HostReducer::Swap(const HostDivision& division, uint64_t chunk) {
  const auto own = static_cast<size_t>(plane_->members().host);
  char* partial = plane_->local().partial(chunk);
  const Range mine = division.PackedOf(own);
  received_.resize(static_cast<size_t>(plane_->members().host_count()));
  std::vector<Transfer> transfers;
  for (size_t h = 0; h < received_.size(); ++h) {
    if (h == own) continue;
    const Range theirs = division.PackedOf(h);
    received_[h].resize(mine.end - mine.begin);
    transfers.push_back({static_cast<int>(h),
                         {{partial + theirs.begin, theirs.end - theirs.begin}},
                         {{received_[h].data(), received_[h].size()}}});
  }
  return plane_->ExchangeWithHosts(std::move(transfers));
}

// Those that have accumulators: not all of their ranks have joined.
std::vector<size_t> HostReducer::ActiveHosts() const {
  const GroupMembers& members = plane_->members();
  std::vector<size_t> hosts;
  for (size_t h = 0; h < members.on_host.size(); ++h) {
    const std::vector<int>& places = members.on_host[h];
    if (std::any_of(places.begin(), places.end(),
                    [this](int place) { return plane_->IsActive(place); })) {
      hosts.push_back(h);
    }
  }
  return hosts;
}

void HostReducer::Finish(const HostDivision& division, uint64_t chunk) {
  const auto own = static_cast<size_t>(plane_->members().host);
  const uint64_t begin = division.PackedOf(own).begin;
  const char* partial = plane_->local().partial(chunk);
  char* result = plane_->local().result(chunk);
  const std::vector<size_t> hosts = ActiveHosts();
  std::vector<const void*> sources(hosts.size());
  for (const HostPiece& piece : division.pieces()[own]) {
    for (size_t s = 0; s < sources.size(); ++s) {
      sources[s] = hosts[s] == own
                       ? partial + piece.packed
                       : received_[hosts[s]].data() + (piece.packed - begin);
    }
    reduction_->ReduceFinal(piece.tensor, sources.data(),
                            static_cast<int>(sources.size()), result + piece.at,
                            piece.count);
  }
}

}  // namespace tfring
