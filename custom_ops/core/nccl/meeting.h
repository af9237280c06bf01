// How the ranks of a group come to one way in which tensors of GPUs travel.
//
// The first such collective of a group gathers a word of each rank: which NCCL
// it has, which GPU, what its settings want. All ranks decide by all words, so
// they decide alike, and an error has the same text everywhere.
#ifndef TFRING_CORE_NCCL_MEETING_H_
#define TFRING_CORE_NCCL_MEETING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/nccl_api.h"

namespace tfring {

// Sent as it is, between processes of one job, which have the same engine.
struct GpuWord {
  int32_t nccl_version = 0;  // 0: NCCL cannot be used, `reason` says why
  int32_t shares = 0;        // NCCL_MULTI_RANK_GPU_ENABLE is set
  int32_t scales = 0;        // NCCL has pre-multiplied sums
  int32_t data = 0;          // tfr_gpu_data; the first rank's counts
  int32_t hosts_by_tcp = 0;  // the first rank's counts
  uint32_t piece_bytes = 0;  // the first rank's counts
  char bus_id[32] = {};
  NcclUniqueId id = {};  // of the first rank, and of each host's first
  char reason[312] = {};
};

struct GpuWays {
  bool nccl = false;
  bool scales = false;
  // Between hosts allreduce travels as CPU tensors do. Then each host has a
  // communicator of its own, and all else is staged.
  bool hosts_by_tcp = false;
  uint64_t piece_bytes = 0;  // of what is staged
  std::string why_staged;    // what a user may not have expected; else empty
};

// FAILED_PRECONDITION: NCCL is wanted and cannot be used.
Status ChooseWays(const GroupMembers& members,
                  const std::vector<GpuWord>& words, GpuWays* ways);

// The places whose communicator includes this rank's, ascending.
std::vector<int> CommunicatorPlaces(const GroupMembers& members,
                                    const GpuWays& ways);

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_MEETING_H_
