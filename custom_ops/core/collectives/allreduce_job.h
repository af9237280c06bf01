// One allreduce on one host on its way through the data plane. allreduce.h
// tells how the stages are put together.
#ifndef TFRING_CORE_COLLECTIVES_ALLREDUCE_JOB_H_
#define TFRING_CORE_COLLECTIVES_ALLREDUCE_JOB_H_

#include <cstdint>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/collectives/reduction.h"
#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

class AllreduceJob {
 public:
  AllreduceJob(DataPlane* plane, const Operation& operation);

  uint64_t steps() const;
  uint64_t stream_bytes() const { return stream_.size(); }
  Range RangeOf(uint64_t step) const;  // of the stream of staged bytes

  Status CopyIn(uint64_t step, uint64_t chunk);
  Status ReduceDirectly(uint64_t step, uint64_t chunk);
  // Where each rank reduces a share for all. The own share goes from the input,
  // as good as the slot, to the output without a detour.
  Status CopyInForOthers(uint64_t step, uint64_t chunk);
  Status ReduceShare(uint64_t step, uint64_t chunk);
  Status CopyOutOfOthers(uint64_t step, uint64_t chunk);
  // A world of one.
  void ReduceAlone();

 private:
  // Where in a result chunk a piece lies that is staged at `at` of the stream.
  // The tensor's part of the chunk begins where all of it grown by
  // `result_growth_` would, and is without gaps.
  uint64_t ResultAt(uint64_t begin, const OperationTensor& tensor,
                    uint64_t offset, uint64_t at) const;
  // Where in its place a chunk begins: small collectives take turns.
  uint64_t SlotOffset(uint64_t chunk) const;
  uint64_t step_bytes() const { return plane_->chunk_bytes() / result_growth_; }
  Range ShareOf(const Range& range) const;
  // Some of the stream's bytes; the chunk starts at `begin`.
  void CopyInRange(const Range& range, uint64_t begin, uint64_t chunk,
                   Stores stores) const;
  void CopyOutRange(const Range& range, uint64_t begin, uint64_t chunk) const;
  // From outputs into results.
  void ShareRange(const Range& range, uint64_t begin, uint64_t chunk,
                  Stores stores) const;
  // ... into results, or into outputs if `result` is null.
  void ReduceRange(const Range& range, uint64_t begin, uint64_t chunk,
                   char* result) const;

  DataPlane* const plane_;
  const Operation& operation_;
  Stream stream_;
  Reduction reduction_;
  // Bytes of a result for each byte that is staged: results are never rounded
  // on their way through a host.
  uint64_t result_growth_ = 1;
  bool narrows_ = false;  // some tensors are rounded on the way into slots
  const bool active_;     // a rank that has joined neither gives nor takes
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLREDUCE_JOB_H_
