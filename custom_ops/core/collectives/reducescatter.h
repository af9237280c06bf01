// Reducescatter of a list of tensors: the reduction of all ranks' inputs, of
// which each rank gets its rows. The first dimension is split in rank order;
// if it does not divide evenly the first ranks get one row more.
//
// Each chunk of a slot holds a part for every rank (partition.h). In a host,
// each rank copies the parts of others into its slot, then reduces its own from
// all slots straight into its output: one pass in, no pass out.
//
// H hosts: as allreduce (host_reduce.h), but every host owns the parts of its
// ranks, which copy them from the result chunk. Nothing is spread afterwards:
// (H-1)/H of the accumulators' bytes per leader, one step.
//
// Sources are reduced in the order in which allreduce takes them, so that the
// rows have the same bits as those of an allreduce of the same inputs.
#ifndef TFRING_CORE_COLLECTIVES_REDUCESCATTER_H_
#define TFRING_CORE_COLLECTIVES_REDUCESCATTER_H_

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

Status Reducescatter(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_REDUCESCATTER_H_
