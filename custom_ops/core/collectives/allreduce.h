// Allreduce of a list of tensors: every rank gets, element by element, the
// reduction of all ranks' inputs.
//
// One host, two ranks ("direct"): each copies a chunk of its input into its
// slot, then reduces both slots into its output. One pass in, one pass out.
//
// One host, more ranks ("shared"): copy in; reduce the own 1/L share of the
// chunk from all L slots into the result chunk; copy the whole result out.
// Memory traffic per rank and byte: 2 reads and 2 writes, whatever L.
//
// H hosts: the ranks of a host reduce their shares into accumulators; the
// leaders exchange them directly, each owning 1/H of the chunk: send the parts
// of others, reduce the own part in host order, send the result to all.
// 2(H-1)/H of the accumulators' bytes per leader, two steps. Accumulators
// travel, so 16-bit sums are rounded once.
//
// The order of reduction depends on the ranks' places only, never on sizes:
// the same ranks give the same bits, alike on every rank.
#ifndef TFRING_CORE_COLLECTIVES_ALLREDUCE_H_
#define TFRING_CORE_COLLECTIVES_ALLREDUCE_H_

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// Outputs must have been allocated.
Status Allreduce(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLREDUCE_H_
