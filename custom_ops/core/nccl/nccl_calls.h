// A collective as calls of NCCL.
//
//   allreduce      ncclAllReduce per tensor
//   broadcast      ncclBroadcast per tensor
//   allgather      ncclAllGather; where ranks have different numbers of rows, a
//                  broadcast of each rank's
//   reducescatter  ncclReduceScatter; where rows do not divide by the ranks, a
//                  reduction to each rank
//   alltoall       ncclSend and ncclRecv between all ranks
//
// All calls of a collective are one NCCL group, so they share launches. Sizes
// that only the ranks know are gathered over the host's data plane first.
//
// NCCL scales what it adds up ("pre-multiplied sum"), each input by one factor:
// prescale * postscale, divided by the ranks for Average. It rounds the factor
// and each product to the dtype, so 16-bit results differ from those of the
// host by a few units in the last place, and do not overflow where the sum
// would.
#ifndef TFRING_CORE_NCCL_NCCL_CALLS_H_
#define TFRING_CORE_NCCL_NCCL_CALLS_H_

#include <functional>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/nccl_api.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// What each input is multiplied by when `size` ranks add up.
double FactorOf(const Operation& operation, int size);

// Whether NCCL gives the result that the host would, up to rounding of floats:
// not for int16 and uint16, which it lacks; integers that are averaged or
// scaled, which the host does in wider ones; Min, Max and Product that are
// scaled; Adasum; and a wire dtype. `scales`: it has pre-multiplied sums. The
// same on all ranks.
bool NcclTakes(const Operation& operation, int size, bool scales);

struct NcclCalls {
  // Issues them; the first result that is a failure. `ops[t]`: the
  // reduction of tensor t.
  std::function<int(const NcclApi& nccl, const std::vector<int>& ops,
                    NcclComm comm, CudaStream stream)>
      issue;
  // The caller was asked for outputs.
  bool allocated = false;
};

// Finds out what `operation` asks of NCCL. Fails on all ranks alike, and before
// any of them has called NCCL. `operation` must outlive the calls.
Status PlanNcclCalls(DataPlane* plane, const Operation& operation,
                     NcclCalls* calls);

int NcclDtype(int32_t dtype);  // -1: it has no such type
int NcclReduceOp(int32_t reduce_op);

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_NCCL_CALLS_H_
