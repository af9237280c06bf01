// The memory that the members of a group on one host share: the first of them
// makes it, the others open it.
#ifndef TFRING_CORE_RENDEZVOUS_GROUP_MEMORY_H_
#define TFRING_CORE_RENDEZVOUS_GROUP_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/processors.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/local_group.h"

namespace tfring {

// What the memory of all groups of a job has in common.
struct MemoryOptions {
  uint64_t chunk_bytes = 0;   // 0 = chosen
  uint64_t depth = 0;         // 0 = chosen
  int64_t direct_bytes = -1;  // -1 = chosen
  int64_t spin_ns = -1;       // -1 = chosen
  int copy_threads = 0;       // of each rank; 0 = chosen
  bool crowded = false;       // the host has more ranks than processors
};

// Where other processes find a group's memory.
struct MemoryPlace {
  int64_t pid = 0;
  int32_t fd = -1;
  uint64_t nonce = 0;

  std::string Encode() const;
  static MemoryPlace Decode(const std::string& text);
};

// Sets `crowded` and, unless it is given, `copy_threads` for the rank at place
// `me` of those that share a host and may run on these processors. A rank that
// is bound to one of its own is not crowded.
void FitToProcessors(const std::vector<Processors>& here, size_t me,
                     MemoryOptions* options);

// The leader's part.
Status CreateGroupMemory(const GroupMembers& members,
                         const MemoryOptions& options,
                         std::unique_ptr<LocalGroup>* out, MemoryPlace* place);
// The other members' part.
Status OpenGroupMemory(const GroupMembers& members,
                       const MemoryOptions& options, const MemoryPlace& place,
                       std::unique_ptr<LocalGroup>* out);

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_GROUP_MEMORY_H_
