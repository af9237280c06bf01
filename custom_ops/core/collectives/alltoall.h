// Alltoall of a list of tensors: each rank sends some rows of each tensor to
// every rank, in rank order, and gets the rows that the others have for it,
// concatenated in rank order.
//
// The ranks tell each other their splits (8 bytes per tensor and rank), ask for
// their outputs and deliver (deliver.h). Each rank reads and writes once what
// it sends and what it gets; rows that it sends to itself are copied straight.
#ifndef TFRING_CORE_COLLECTIVES_ALLTOALL_H_
#define TFRING_CORE_COLLECTIVES_ALLTOALL_H_

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

Status Alltoall(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLTOALL_H_
