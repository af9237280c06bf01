// One allreduce on its way through the data plane: the stages that act inside
// a host. allreduce.h tells how they are put together.
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
  const Stream& stream() const { return stream_; }
  const Operation& operation() const { return operation_; }
  Range RangeOf(uint64_t step) const;
  Reduction& reduction() { return reduction_; }

  Status CopyIn(uint64_t step, uint64_t chunk);
  Status ReduceDirectly(uint64_t step, uint64_t chunk);
  Status ReduceShare(uint64_t step, uint64_t chunk);
  // The caller has seen that the result is complete.
  void CopyOut(uint64_t step, uint64_t chunk);

 private:
  DataPlane* const plane_;
  const Operation& operation_;
  Stream stream_;
  Reduction reduction_;
  const bool active_;  // a rank that has joined neither gives nor takes
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLREDUCE_JOB_H_
