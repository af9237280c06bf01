// Runs a collective while some ranks have joined: they take part, since the
// others count on their memory and their connections, but contribute nothing
// and want no result.
//
// A joined rank does not know what runs. So all first tell whether they have
// joined, and the first rank that has not describes its operation: two gathers
// more than usual. Allreduce then runs over the active ranks, in rank order;
// Average divides by their number. Anything else is an error on them.
#ifndef TFRING_CORE_COLLECTIVES_JOINED_H_
#define TFRING_CORE_COLLECTIVES_JOINED_H_

#include <functional>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// `operation` is null on a joined rank. `alike`: the active ranks have
// described it alike. `run` runs what can be run, on joined ranks for a
// description without inputs and outputs.
Status RunWithJoined(DataPlane* plane, Operation* operation, bool alike,
                     const std::function<Status(Operation*)>& run);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_JOINED_H_
