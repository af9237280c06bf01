#include "custom_ops/core/collectives/allreduce_hosts.h"

#include <algorithm>
#include <utility>

#include "custom_ops/core/collectives/host_reduce.h"
#include "custom_ops/core/collectives/partition.h"
#include "custom_ops/core/collectives/stream.h"

namespace tfring {
namespace {

// Small chunks keep a small collective's steps apart, large ones cost fewer
// messages.
constexpr uint64_t kLeastChunk = 128 * 1024;
constexpr uint64_t kChunks = 8;

uint64_t ChunkFor(uint64_t bytes, uint64_t most) {
  return std::min(std::max(bytes / kChunks, kLeastChunk), most);
}

// Each host owns a run of the whole stream, and each chunk holds a slice of
// every run. So who owns an element, and with it the order in which it is added
// up, does not depend on the size of chunks.
class HostSlices {
 public:
  HostSlices(const DataPlane& plane, const Operation& operation,
             const Reduction& reduction)
      : operation_(operation),
        reduction_(reduction),
        active_(plane.IsActive(plane.members().rank)),
        hosts_(plane.members().host_count()),
        stream_(StreamOf(operation)),
        partition_(ChunkFor(stream_.size(), plane.chunk_bytes()),
                   static_cast<uint64_t>(hosts_)) {}

  uint64_t bytes() const { return stream_.size(); }
  uint64_t steps() const {
    uint64_t most = 0;
    for (int h = 0; h < hosts_; ++h) {
      const Range run = RunOf(h);
      most = std::max(most, run.end - run.begin);
    }
    return partition_.StepsFor(most);
  }

  void Divide(uint64_t step, HostDivision* division) const {
    for (int h = 0; h < hosts_; ++h) {
      division->BeginPart();
      const auto part = static_cast<uint64_t>(h);
      const Range run = RunOf(h);
      const Range slice = partition_.RangeOf(part, step, run.end - run.begin);
      const uint64_t begin = run.begin + slice.begin;
      const uint64_t place = partition_.PlaceOf(part);
      stream_.ForRange(
          begin, run.begin + slice.end,
          [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
            Add(t, offset, bytes, place + (at - begin), division);
          });
    }
  }

 private:
  static Stream StreamOf(const Operation& operation) {
    Stream stream;
    stream.Reserve(operation.tensors.size());
    for (const OperationTensor& tensor : operation.tensors) {
      stream.Add(tensor.staged_bytes());
    }
    return stream;
  }

  Range RunOf(int host) const {
    const auto part = static_cast<uint64_t>(host);
    const auto parts = static_cast<uint64_t>(hosts_);
    return {ShareBegin(0, stream_.size(), part, parts),
            ShareBegin(0, stream_.size(), part + 1, parts)};
  }

  void Add(size_t t, uint64_t offset, uint64_t bytes, uint64_t at,
           HostDivision* division) const {
    const OperationTensor& tensor = operation_.tensors[t];
    const uint64_t first = offset / tensor.staged_element_bytes;
    HostPiece piece = {};
    piece.tensor = t;
    if (active_) {
      piece.input = tensor.input + first * tensor.element_bytes;
      piece.output = tensor.output + first * tensor.element_bytes;
    }
    piece.at = at;
    piece.bytes = bytes;
    piece.count = bytes / tensor.staged_element_bytes;
    division->Add(piece, reduction_.partial_bytes(t));
  }

  const Operation& operation_;
  const Reduction& reduction_;
  const bool active_;
  const int hosts_;
  const Stream stream_;
  const Partition partition_;
};

}  // namespace

Status AllreduceHosts(DataPlane* plane, const Operation& operation) {
  Reduction reduction(plane, operation);
  const HostSlices slices(*plane, operation, reduction);
  HostReduceOptions options;
  options.algorithm = AlgorithmFor(*plane, slices.bytes());
  if (SendsInputs(*plane, options.algorithm)) reduction.SendInputs();
  options.spreads = true;
  options.steps = slices.steps();
  options.divide = [&slices](uint64_t step, HostDivision* division) {
    slices.Divide(step, division);
  };
  return HostReducer(plane, operation, &reduction, std::move(options)).Run();
}

}  // namespace tfring
