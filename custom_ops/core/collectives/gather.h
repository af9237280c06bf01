// Every rank gets every rank's bytes: what allgather and broadcast are made of.
//
// Inside a host each rank copies its next chunk into its slot, and all copy all
// slots out: per rank one pass in and one pass out of what it receives. The
// leaders of H hosts send their host's chunks to every other leader: (H-1)
// times the host's bytes, one step.
#ifndef TFRING_CORE_COLLECTIVES_GATHER_H_
#define TFRING_CORE_COLLECTIVES_GATHER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/copy.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

struct GatherJob {
  // Bytes of each rank of the group; the same on all ranks.
  std::vector<uint64_t> bytes;
  // Copies this rank's bytes [begin, end) to `to`, by such stores where they
  // are many.
  std::function<void(uint64_t begin, uint64_t end, char* to, Stores stores)>
      read;
  // Takes the bytes [begin, end) of `rank`. Not called for the own rank.
  std::function<void(int rank, uint64_t begin, uint64_t end, const char* from)>
      write;
};

Status Gather(DataPlane* plane, const GatherJob& job);

// Gathers a few bytes of fixed size: `all` holds size() times `mine.size()`.
Status GatherSmall(DataPlane* plane, const std::string& mine, std::string* all);

// Concatenates the tensors of all ranks along their first dimension, in rank
// order. Asks for the outputs once the ranks have told their sizes.
Status Allgather(DataPlane* plane, const Operation& operation);

// Copies the root's tensors to all ranks. Outputs must have been allocated.
Status Broadcast(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_GATHER_H_
