#include "custom_ops/core/collectives/reducescatter.h"

#include <algorithm>
#include <vector>

#include "custom_ops/core/collectives/host_reduce.h"
#include "custom_ops/core/collectives/outputs.h"
#include "custom_ops/core/collectives/partition.h"
#include "custom_ops/core/collectives/reduction.h"
#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/common/copy.h"

namespace tfring {
namespace {

// The first of `rows` rows that belongs to `place`, of `size` places.
uint64_t FirstRow(uint64_t rows, uint64_t place, uint64_t size) {
  return rows / size * place + std::min(place, rows % size);
}

class ReducescatterJob {
 public:
  ReducescatterJob(DataPlane* plane, const Operation& operation)
      : plane_(plane),
        operation_(operation),
        members_(plane->members()),
        partition_(plane->chunk_bytes(),
                   static_cast<uint64_t>(plane->members().size)),
        reduction_(plane, operation) {
    for (const std::vector<int>& places : members_.on_host) {
      order_.insert(order_.end(), places.begin(), places.end());
    }
    part_of_.resize(order_.size());
    for (size_t part = 0; part < order_.size(); ++part) {
      part_of_[static_cast<size_t>(order_[part])] = part;
    }
    for (size_t place = 0; place < order_.size(); ++place) AddStream(place);
  }

  // A rank whose outputs could not be had takes part without them.
  Status AskForOutputs() {
    const auto me = static_cast<size_t>(members_.rank);
    outputs_.assign(operation_.tensors.size(), nullptr);
    for (size_t t = 0; t < outputs_.size(); ++t) {
      const uint64_t rows = RowsOf(t, me + 1) - RowsOf(t, me);
      const Status asked = OutputOf(operation_, t, rows, &outputs_[t]);
      if (asked.ok()) continue;
      outputs_.clear();
      return asked;
    }
    return Status::Ok();
  }

  Reduction& reduction() { return reduction_; }

  uint64_t steps() const { return partition_.StepsFor(most_); }

  // The own part is reduced from the input, not from the slot.
  Status CopyIn(uint64_t step, uint64_t chunk) {
    LocalGroup& local = plane_->local();
    char* slot = local.slot(local.local_rank(), chunk);
    slot += TurnOf(chunk);
    plane_->StoreForOthers(BytesForOthers(step), [&](Stores stores) {
      for (const int place : order_) {
        if (place == members_.rank) continue;
        ForPart(place, step, [&](const Piece& piece) {
          CopyBytes(slot + piece.at, Input(piece), piece.bytes, stores);
        });
      }
    });
    plane_->Advance(&RankState::staged, chunk + 1);
    return Status::Ok();
  }

  Status ReduceOwnPart(uint64_t step, uint64_t chunk) {
    ForOwnPart(step, [&](const Piece& piece) {
      Reduce(
          reduction_.SpecOf(piece.tensor),
          reduction_.SourcesAt(chunk, TurnOf(chunk) + piece.at, Input(piece)),
          reduction_.source_count(), Output(piece), CountOf(piece));
    });
    plane_->Advance(&RankState::taken, chunk + 1);
    return Status::Ok();
  }

  // Of several hosts; each owns the rows of its ranks.
  void Divide(uint64_t step, HostDivision* division) const {
    for (const std::vector<int>& places : members_.on_host) {
      division->BeginPart();
      for (const int place : places) {
        ForPart(place, step, [&](const Piece& piece) {
          const bool mine = place == members_.rank && !outputs_.empty();
          HostPiece part = {};
          part.tensor = piece.tensor;
          part.input = Input(piece);
          part.output = mine ? Output(piece) : nullptr;
          part.at = piece.at;
          part.bytes = piece.bytes;
          part.count = CountOf(piece);
          division->Add(part, reduction_.partial_bytes(piece.tensor));
        });
      }
    }
  }

  // A world of one: scales and copies.
  void ReduceAlone() {
    for (size_t t = 0; t < outputs_.size(); ++t) {
      const OperationTensor& tensor = operation_.tensors[t];
      const void* const source = tensor.input;
      Reduce(reduction_.SpecOf(t), &source, 1, outputs_[t], tensor.count);
    }
  }

 private:
  // A run of bytes of one tensor's rows for one place.
  struct Piece {
    size_t tensor;
    int place;
    uint64_t offset;  // from the place's first row
    uint64_t at;      // from the chunk's begin
    uint64_t bytes;
  };

  void AddStream(size_t place) {
    Stream stream;
    stream.Reserve(operation_.tensors.size());
    for (size_t t = 0; t < operation_.tensors.size(); ++t) {
      const uint64_t rows = RowsOf(t, place + 1) - RowsOf(t, place);
      stream.Add(rows * operation_.RowBytes(operation_.tensors[t]));
    }
    most_ = std::max(most_, stream.size());
    streams_.push_back(std::move(stream));
  }

  uint64_t RowsOf(size_t tensor, size_t place) const {
    const int64_t rows = operation_.Rows(operation_.tensors[tensor]);
    return FirstRow(static_cast<uint64_t>(rows), place, order_.size());
  }

  Range RangeOf(int place, uint64_t step) const {
    const auto p = static_cast<size_t>(place);
    return partition_.RangeOf(part_of_[p], step, streams_[p].size());
  }

  uint64_t BytesForOthers(uint64_t step) const {
    uint64_t bytes = 0;
    for (const int place : order_) {
      if (place != members_.rank) bytes += RangeOf(place, step).size();
    }
    return bytes;
  }

  // Inside one host.
  uint64_t TurnOf(uint64_t chunk) const {
    return plane_->TurnOf(chunk, most_, partition_.part_bytes());
  }

  template <typename F>
  void ForPart(int place, uint64_t step, F&& f) const {
    const auto p = static_cast<size_t>(place);
    const Range range = RangeOf(place, step);
    const uint64_t begin = partition_.PlaceOf(part_of_[p]);
    streams_[p].ForRange(
        range.begin, range.end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          f(Piece{t, place, offset, begin + (at - range.begin), bytes});
        });
  }

  template <typename F>
  void ForOwnPart(uint64_t step, F&& f) const {
    if (!outputs_.empty()) ForPart(members_.rank, step, f);
  }

  const char* Input(const Piece& piece) const {
    const OperationTensor& tensor = operation_.tensors[piece.tensor];
    const uint64_t row = RowsOf(piece.tensor, static_cast<size_t>(piece.place));
    return tensor.input + row * operation_.RowBytes(tensor) + piece.offset;
  }

  char* Output(const Piece& piece) const {
    return outputs_[piece.tensor] + piece.offset;
  }

  size_t CountOf(const Piece& piece) const {
    return piece.bytes / operation_.tensors[piece.tensor].element_bytes;
  }

  DataPlane* const plane_;
  const Operation& operation_;
  const GroupMembers& members_;
  const Partition partition_;
  Reduction reduction_;
  std::vector<int> order_;         // places, host by host
  std::vector<uint64_t> part_of_;  // of each place; its index in order_
  std::vector<Stream> streams_;    // of each place: its rows of all tensors
  uint64_t most_ = 0;              // bytes of a place
  std::vector<char*> outputs_;     // empty: there is no memory for them
};

Status ReducescatterHere(DataPlane* plane, ReducescatterJob* job) {
  return plane->RunHere(
      job->steps(),
      {{nullptr, [job](uint64_t step,
                       uint64_t chunk) { return job->CopyIn(step, chunk); }},
       {&RankState::staged, [job](uint64_t step, uint64_t chunk) {
          return job->ReduceOwnPart(step, chunk);
        }}});
}

Status ReducescatterHosts(DataPlane* plane, const Operation& operation,
                          ReducescatterJob* job) {
  HostReduceOptions options;
  options.algorithm = AlgorithmFor(*plane, operation.InputBytes());
  if (SendsInputs(*plane, options.algorithm)) job->reduction().SendInputs();
  options.steps = job->steps();
  options.divide = [job](uint64_t step, HostDivision* division) {
    job->Divide(step, division);
  };
  return HostReducer(plane, operation, &job->reduction(), std::move(options))
      .Run();
}

}  // namespace

Status Reducescatter(DataPlane* plane, const Operation& operation) {
  ReducescatterJob job(plane, operation);
  const Status asked = job.AskForOutputs();
  if (plane->members().size == 1) {
    if (asked.ok()) job.ReduceAlone();
    return asked;
  }
  TFR_RETURN_IF_ERROR(plane->members().host_count() > 1
                          ? ReducescatterHosts(plane, operation, &job)
                          : ReducescatterHere(plane, &job));
  return asked;
}

}  // namespace tfring
