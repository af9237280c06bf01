// Every rank sends other bytes to each rank: what alltoall and the exchanges of
// Adasum are made of.
//
// Each chunk of a slot holds a part for every rank that its owner sends to
// (partition.h). In a host, ranks copy their parts in and take from all slots
// the parts for them: one pass in, one pass out. The leaders of H hosts send
// each other host the parts for its ranks, which land at the same places there:
// only what leaves a host travels, one step.
#ifndef TFRING_CORE_COLLECTIVES_DELIVER_H_
#define TFRING_CORE_COLLECTIVES_DELIVER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/copy.h"
#include "custom_ops/core/common/status.h"

namespace tfring {

struct DeliverJob {
  // Bytes that each place sends to each, [from][to]; the same on all ranks.
  // What a rank has for itself stays with the caller.
  std::vector<std::vector<uint64_t>> bytes;
  // Copies the bytes [begin, end) for `to` to `at`, by such stores where they
  // are many.
  std::function<void(int to, uint64_t begin, uint64_t end, char* at,
                     Stores stores)>
      read;
  // Takes the bytes [begin, end) of `from`.
  std::function<void(int from, uint64_t begin, uint64_t end, const char* at)>
      write;
};

Status Deliver(DataPlane* plane, const DeliverJob& job);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_DELIVER_H_
