// Runs in place of a collective that the ranks described differently, or that
// some could not describe because their arguments are wrong: they tell each
// other what they sent, and all report the same error. The engine is usable
// afterwards.
#ifndef TFRING_CORE_COLLECTIVES_MISMATCH_H_
#define TFRING_CORE_COLLECTIVES_MISMATCH_H_

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// FAILED_PRECONDITION listing ranks and what they sent; with faults among
// them, INVALID_ARGUMENT listing these.
Status Mismatch(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_MISMATCH_H_
