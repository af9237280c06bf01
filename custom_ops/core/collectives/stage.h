// A step of a pipeline of chunks.
#ifndef TFRING_CORE_COLLECTIVES_STAGE_H_
#define TFRING_CORE_COLLECTIVES_STAGE_H_

#include <cstdint>
#include <functional>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/local_group.h"

namespace tfring {

// Handles the collective's `step`-th chunk, whose number in the group is
// `chunk`.
using Stage = std::function<Status(uint64_t step, uint64_t chunk)>;

// ... inside a host, once all ranks' counter `needs` has passed the chunk. The
// first stage needs none: it waits for a free place.
struct HereStage {
  Counter RankState::* needs;
  Stage run;
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_STAGE_H_
