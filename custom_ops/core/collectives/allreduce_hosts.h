// The part of allreduce that crosses hosts; allreduce.h tells the algorithm.
#ifndef TFRING_CORE_COLLECTIVES_ALLREDUCE_HOSTS_H_
#define TFRING_CORE_COLLECTIVES_ALLREDUCE_HOSTS_H_

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

Status AllreduceHosts(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLREDUCE_HOSTS_H_
