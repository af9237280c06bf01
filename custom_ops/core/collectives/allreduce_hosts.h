// The part of allreduce that crosses hosts; allreduce.h tells the algorithm.
#ifndef TFRING_CORE_COLLECTIVES_ALLREDUCE_HOSTS_H_
#define TFRING_CORE_COLLECTIVES_ALLREDUCE_HOSTS_H_

#include "custom_ops/core/collectives/allreduce_job.h"

namespace tfring {

Status AllreduceHosts(DataPlane* plane, AllreduceJob* job);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLREDUCE_HOSTS_H_
