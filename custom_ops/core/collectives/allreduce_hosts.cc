#include "custom_ops/core/collectives/allreduce_hosts.h"

#include <utility>
#include <vector>

namespace tfring {
namespace {

// A run of elements of one tensor inside a chunk and inside one host's part.
struct PartPiece {
  size_t tensor;
  uint64_t at;      // bytes from the chunk's begin, in elements' own type
  uint64_t packed;  // bytes from the begin of the packed accumulators
  uint64_t count;   // elements
};

// How one chunk is divided among the hosts: host h owns the bytes
// [begin[h], begin[h+1]) of the chunk; its accumulators are packed at
// [packed[h], packed[h+1]). Every rank computes the same division.
struct Division {
  std::vector<uint64_t> begin;
  std::vector<uint64_t> packed;
  std::vector<std::vector<PartPiece>> pieces;  // per host
};

Division Divide(const AllreduceJob& job, ChunkRange range, int hosts) {
  Division division;
  const auto parts = static_cast<uint64_t>(hosts);
  division.pieces.resize(parts);
  uint64_t packed = 0;
  for (uint64_t h = 0; h < parts; ++h) {
    const uint64_t begin = ShareBegin(range.begin, range.end, h, parts);
    const uint64_t end = ShareBegin(range.begin, range.end, h + 1, parts);
    division.begin.push_back(begin - range.begin);
    division.packed.push_back(packed);
    job.stream().ForRange(
        begin, end, [&](size_t t, uint64_t, uint64_t bytes, uint64_t at) {
          const OperationTensor& tensor = job.operation().tensors[t];
          const uint64_t count = bytes / tensor.element_bytes;
          division.pieces[h].push_back({t, at - range.begin, packed, count});
          packed += AlignStream(count * AccumulatorSize(tensor.dtype));
        });
  }
  division.begin.push_back(range.end - range.begin);
  division.packed.push_back(packed);
  return division;
}

class HostExchange {
 public:
  HostExchange(DataPlane* plane, AllreduceJob* job)
      : plane_(plane), job_(job) {}

  // This rank's share of every piece, from slots into accumulators.
  Status ReducePartials(uint64_t step, uint64_t chunk) {
    TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
    LocalGroup& local = plane_->local();
    const auto rank = static_cast<uint64_t>(local.local_rank());
    const auto ranks = static_cast<uint64_t>(local.local_size());
    char* partial = local.partial(chunk);
    for (const auto& pieces : Divide(step).pieces) {
      for (const PartPiece& piece : pieces) {
        const OperationTensor& tensor = job_->operation().tensors[piece.tensor];
        const uint64_t first = piece.count * rank / ranks;
        const uint64_t last = piece.count * (rank + 1) / ranks;
        if (first == last) continue;
        const void* const* sources =
            job_->SlotSources(chunk, piece.at + first * tensor.element_bytes);
        ReducePartial(
            job_->SpecOf(piece.tensor), sources, static_cast<int>(ranks),
            partial + piece.packed + first * AccumulatorSize(tensor.dtype),
            last - first);
      }
    }
    plane_->Advance(&RankState::reduced, chunk + 1);
    return Status::Ok();
  }

  // Leader: swaps accumulators, reduces the own part, spreads the result.
  Status Exchange(uint64_t step, uint64_t chunk) {
    if (!plane_->members().leads()) return Status::Ok();
    TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::reduced, chunk + 1));
    const Division division = Divide(step);
    TFR_RETURN_IF_ERROR(SwapPartials(division, chunk));
    ReduceOwnPart(division, chunk);
    TFR_RETURN_IF_ERROR(SpreadResult(division, chunk));
    plane_->Advance(&RankState::exchanged, chunk + 1);
    return Status::Ok();
  }

  Status CopyOut(uint64_t step, uint64_t chunk) {
    TFR_RETURN_IF_ERROR(AwaitLeader(chunk + 1));
    job_->CopyOut(step, chunk);
    return Status::Ok();
  }

 private:
  int host() const { return plane_->members().host; }
  int hosts() const { return plane_->members().host_count(); }

  Division Divide(uint64_t step) const {
    return tfring::Divide(*job_, job_->RangeOf(step), hosts());
  }

  Status AwaitLeader(uint64_t value) {
    if (plane_->members().leads()) return Status::Ok();
    return plane_->Await(0, &RankState::exchanged, value);
  }

  Status SwapPartials(const Division& division, uint64_t chunk) {
    const auto own = static_cast<size_t>(host());
    char* partial = plane_->local().partial(chunk);
    const uint64_t bytes = division.packed[own + 1] - division.packed[own];
    received_.resize(static_cast<size_t>(hosts()));
    std::vector<Transfer> transfers;
    for (size_t h = 0; h < received_.size(); ++h) {
      if (h == own) continue;
      received_[h].resize(bytes);
      transfers.push_back({static_cast<int>(h),
                           {{partial + division.packed[h],
                             division.packed[h + 1] - division.packed[h]}},
                           {{received_[h].data(), bytes}}});
    }
    return plane_->ExchangeWithHosts(std::move(transfers));
  }

  void ReduceOwnPart(const Division& division, uint64_t chunk) {
    const auto own = static_cast<size_t>(host());
    const char* partial = plane_->local().partial(chunk);
    char* result = plane_->local().result(chunk);
    std::vector<const void*> sources(received_.size());
    for (const PartPiece& piece : division.pieces[own]) {
      for (size_t h = 0; h < sources.size(); ++h) {
        sources[h] = h == own ? partial + piece.packed
                              : received_[h].data() + piece.packed -
                                    division.packed[own];
      }
      ReduceFinal(job_->SpecOf(piece.tensor), sources.data(),
                  static_cast<int>(sources.size()), result + piece.at,
                  piece.count);
    }
  }

  Status SpreadResult(const Division& division, uint64_t chunk) {
    const auto own = static_cast<size_t>(host());
    char* result = plane_->local().result(chunk);
    std::vector<Transfer> transfers;
    for (size_t h = 0; h < received_.size(); ++h) {
      if (h == own) continue;
      transfers.push_back({static_cast<int>(h),
                           {{result + division.begin[own],
                             division.begin[own + 1] - division.begin[own]}},
                           {{result + division.begin[h],
                             division.begin[h + 1] - division.begin[h]}}});
    }
    return plane_->ExchangeWithHosts(std::move(transfers));
  }

  DataPlane* const plane_;
  AllreduceJob* const job_;
  std::vector<std::vector<char>> received_;  // accumulators of other hosts
};

}  // namespace

Status AllreduceHosts(DataPlane* plane, AllreduceJob* job) {
  HostExchange exchange(plane, job);
  return plane->RunPipeline(job->steps(),
                            {[job](uint64_t step, uint64_t chunk) {
                               return job->CopyIn(step, chunk);
                             },
                             [&](uint64_t step, uint64_t chunk) {
                               return exchange.ReducePartials(step, chunk);
                             },
                             [&](uint64_t step, uint64_t chunk) {
                               return exchange.Exchange(step, chunk);
                             },
                             [&](uint64_t step, uint64_t chunk) {
                               return exchange.CopyOut(step, chunk);
                             }});
}

}  // namespace tfring
