#include "custom_ops/core/collectives/gather.h"

#include <algorithm>
#include <cstring>

#include "custom_ops/core/collectives/host_transfers.h"
#include "custom_ops/core/collectives/outputs.h"
#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/common/copy.h"

namespace tfring {
namespace {

class Gatherer {
 public:
  Gatherer(DataPlane* plane, const GatherJob& job)
      : plane_(plane),
        job_(job),
        members_(plane->members()),
        chunk_bytes_(plane->meeting_chunk_bytes()),
        most_(*std::max_element(job.bytes.begin(), job.bytes.end())),
        transfers_(plane) {}

  uint64_t steps() const { return (most_ + chunk_bytes_ - 1) / chunk_bytes_; }

  Status CopyIn(uint64_t step, uint64_t chunk) {
    const Range range = RangeOf(members_.rank, step);
    if (!range.empty()) {
      char* const place = PlaceOf(members_.rank, chunk);
      plane_->StoreForOthers(range.size(), [&](Stores stores) {
        job_.read(range.begin, range.end, place, stores);
      });
    }
    plane_->Advance(&RankState::staged, chunk + 1);
    return Status::Ok();
  }

  // Leader: this host's chunks to all other hosts, theirs to this one.
  Status PostExchange(uint64_t step, uint64_t chunk) {
    if (!plane_->Exchanges(step)) return Status::Ok();
    TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
    const std::vector<iovec> ours = PartsOf(members_.host, step, chunk);
    for (int h = 0; h < members_.host_count(); ++h) {
      if (h == members_.host) continue;
      transfers_.Receive(h, chunk, PartsOf(h, step, chunk));
      transfers_.Send(h, chunk, ours);
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
    for (int rank = 0; rank < members_.size; ++rank) {
      const Range range = RangeOf(rank, step);
      if (rank == members_.rank || range.empty()) continue;
      job_.write(rank, range.begin, range.end, PlaceOf(rank, chunk));
    }
    plane_->Advance(&RankState::taken, chunk + 1);
    return Status::Ok();
  }

 private:
  Range RangeOf(int rank, uint64_t step) const {
    const uint64_t bytes = job_.bytes[static_cast<size_t>(rank)];
    return {std::min(bytes, step * chunk_bytes_),
            std::min(bytes, (step + 1) * chunk_bytes_)};
  }

  char* PlaceOf(int rank, uint64_t chunk) const {
    return plane_->ChunkOf(rank, chunk) +
           plane_->TurnOf(chunk, most_, chunk_bytes_);
  }

  std::vector<iovec> PartsOf(int host, uint64_t step, uint64_t chunk) const {
    std::vector<iovec> parts;
    for (const int rank : members_.on_host[static_cast<size_t>(host)]) {
      const Range range = RangeOf(rank, step);
      parts.push_back({PlaceOf(rank, chunk), range.size()});
    }
    return parts;
  }

  DataPlane* const plane_;
  const GatherJob& job_;
  const GroupMembers& members_;
  const uint64_t chunk_bytes_;
  const uint64_t most_;  // of a rank's bytes
  HostTransfers transfers_;
};

Stream StreamOf(const Operation& operation,
                const std::vector<uint64_t>& bytes) {
  Stream stream;
  stream.Reserve(operation.tensors.size());
  for (const uint64_t size : bytes) stream.Add(size);
  return stream;
}

std::vector<uint64_t> InputSizes(const Operation& operation) {
  std::vector<uint64_t> sizes;
  for (const OperationTensor& tensor : operation.tensors) {
    sizes.push_back(tensor.bytes);
  }
  return sizes;
}

// Reads this rank's inputs as one stream.
std::function<void(uint64_t, uint64_t, char*, Stores)> InputReader(
    const Operation& operation, const Stream& stream) {
  return [&operation, &stream](uint64_t begin, uint64_t end, char* to,
                               Stores stores) {
    stream.ForRange(
        begin, end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          CopyBytes(to + (at - begin), operation.tensors[t].input + offset,
                    bytes, stores);
        });
  };
}

}  // namespace

Status Gather(DataPlane* plane, const GatherJob& job) {
  Gatherer gatherer(plane, job);
  return plane->RunMover(&gatherer);
}

Status GatherSmall(DataPlane* plane, const std::string& mine,
                   std::string* all) {
  const GroupMembers& members = plane->members();
  all->assign(mine.size() * static_cast<size_t>(members.size), '\0');
  const auto place = [&](int rank) {
    return &(*all)[static_cast<size_t>(rank) * mine.size()];
  };
  if (!mine.empty()) std::memcpy(place(members.rank), mine.data(), mine.size());
  GatherJob job;
  job.bytes.assign(static_cast<size_t>(members.size), mine.size());
  job.read = [&](uint64_t begin, uint64_t end, char* to, Stores stores) {
    CopyBytes(to, mine.data() + begin, end - begin, stores);
  };
  job.write = [&](int rank, uint64_t begin, uint64_t end, const char* from) {
    std::memcpy(place(rank) + begin, from, end - begin);
  };
  return Gather(plane, job);
}

namespace {

// The first dimensions of all ranks' tensors: rows[rank][tensor].
Status GatherRows(DataPlane* plane, const Operation& operation,
                  std::vector<std::vector<uint64_t>>* rows) {
  const size_t tensors = operation.tensors.size();
  std::vector<uint64_t> mine;
  for (const OperationTensor& tensor : operation.tensors) {
    mine.push_back(static_cast<uint64_t>(operation.Rows(tensor)));
  }
  std::string all;
  TFR_RETURN_IF_ERROR(
      GatherSmall(plane,
                  std::string(reinterpret_cast<const char*>(mine.data()),
                              tensors * sizeof(uint64_t)),
                  &all));
  rows->assign(static_cast<size_t>(plane->members().size),
               std::vector<uint64_t>(tensors));
  for (size_t rank = 0; rank < rows->size(); ++rank) {
    if (tensors == 0) break;
    std::memcpy((*rows)[rank].data(),
                all.data() + rank * tensors * sizeof(uint64_t),
                tensors * sizeof(uint64_t));
  }
  return Status::Ok();
}

// Where each rank's rows go: outputs[tensor] + begins[rank][tensor].
struct GatherLayout {
  std::vector<char*> outputs;
  std::vector<Stream> streams;                // per rank
  std::vector<std::vector<uint64_t>> begins;  // per rank and tensor
};

Status PlaceRows(const Operation& operation,
                 const std::vector<std::vector<uint64_t>>& rows,
                 GatherLayout* layout) {
  layout->streams.resize(rows.size());
  layout->begins.resize(rows.size());
  for (size_t t = 0; t < operation.tensors.size(); ++t) {
    const OperationTensor& tensor = operation.tensors[t];
    const uint64_t row_bytes = operation.RowBytes(tensor);
    uint64_t total = 0;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      layout->streams[rank].Add(rows[rank][t] * row_bytes);
      layout->begins[rank].push_back(total * row_bytes);
      TFR_RETURN_IF_ERROR(AddRows(operation, t, rows[rank][t], &total));
    }
    char* output = nullptr;
    TFR_RETURN_IF_ERROR(OutputOf(operation, t, total, &output));
    layout->outputs.push_back(output);
  }
  return Status::Ok();
}

}  // namespace

Status Allgather(DataPlane* plane, const Operation& operation) {
  std::vector<std::vector<uint64_t>> rows;
  TFR_RETURN_IF_ERROR(GatherRows(plane, operation, &rows));
  GatherLayout layout;
  const Status placed = PlaceRows(operation, rows, &layout);
  // A rank without memory still takes part, or the others would wait for it.
  GatherJob job;
  const auto me = static_cast<size_t>(plane->members().rank);
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    uint64_t bytes = 0;
    for (size_t t = 0; t < operation.tensors.size(); ++t) {
      bytes +=
          AlignStream(rows[rank][t] * operation.RowBytes(operation.tensors[t]));
    }
    job.bytes.push_back(bytes);
  }
  const Stream mine = StreamOf(operation, InputSizes(operation));
  job.read = InputReader(operation, mine);
  job.write = [&](int rank, uint64_t begin, uint64_t end, const char* from) {
    if (!placed.ok()) return;
    const auto r = static_cast<size_t>(rank);
    layout.streams[r].ForRange(
        begin, end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          CopyBytes(layout.outputs[t] + layout.begins[r][t] + offset,
                    from + (at - begin), bytes);
        });
  };
  if (placed.ok()) {
    for (size_t t = 0; t < operation.tensors.size(); ++t) {
      const OperationTensor& tensor = operation.tensors[t];
      if (tensor.bytes == 0) continue;
      CopyBytes(layout.outputs[t] + layout.begins[me][t], tensor.input,
                tensor.bytes);
    }
  }
  TFR_RETURN_IF_ERROR(Gather(plane, job));
  return placed;
}

Status Broadcast(DataPlane* plane, const Operation& operation) {
  const Stream stream = StreamOf(operation, InputSizes(operation));
  const int me = plane->members().rank;
  GatherJob job;
  job.bytes.assign(static_cast<size_t>(plane->members().size), 0);
  job.bytes[static_cast<size_t>(operation.root_place)] = stream.size();
  job.read = InputReader(operation, stream);
  job.write = [&](int, uint64_t begin, uint64_t end, const char* from) {
    stream.ForRange(
        begin, end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          CopyBytes(operation.tensors[t].output + offset, from + (at - begin),
                    bytes);
        });
  };
  TFR_RETURN_IF_ERROR(Gather(plane, job));
  if (me != operation.root_place) return Status::Ok();
  for (const OperationTensor& tensor : operation.tensors) {
    if (tensor.output != tensor.input && tensor.bytes > 0) {
      CopyBytes(tensor.output, tensor.input, tensor.bytes);
    }
  }
  return Status::Ok();
}

}  // namespace tfring
