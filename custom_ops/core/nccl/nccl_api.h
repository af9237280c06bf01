// The functions of NCCL that the engine uses, looked up at run time.
//
// Declared after nccl.h of NCCL 2.32, as far as its C face has been the same
// since 2.18, the oldest version taken: types keep their numbers, and the
// library reads no more of a configuration than its `size` says.
#ifndef TFRING_CORE_NCCL_NCCL_API_H_
#define TFRING_CORE_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/cuda_api.h"

namespace tfring {

using NcclComm = void*;  // ncclComm_t

struct NcclUniqueId {
  char internal[128];
};

// ncclResult_t
constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;

// A call to a nonblocking communicator may leave work for later: that is no
// failure.
constexpr bool NcclFailed(int result) {
  return result != kNcclSuccess && result != kNcclInProgress;
}

// ncclDataType_t
constexpr int kNcclInt8 = 0;
constexpr int kNcclUint8 = 1;
constexpr int kNcclInt32 = 2;
constexpr int kNcclInt64 = 4;
constexpr int kNcclFloat16 = 6;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclFloat64 = 8;
constexpr int kNcclBfloat16 = 9;

// ncclRedOp_t
constexpr int kNcclSum = 0;
constexpr int kNcclProd = 1;
constexpr int kNcclMax = 2;
constexpr int kNcclMin = 3;

// ncclScalarResidence_t: read before the call returns
constexpr int kNcclScalarHostImmediate = 1;

// ncclConfig_t as of 2.18; later ones have more at the end.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;  // INT_MIN: the library's default
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

struct NcclApi {
  static constexpr int kOldest = 21800;
  // From this version on, several ranks can use one GPU.
  static constexpr int kSharesGpus = 23000;

  // `path`: the library's; empty: found by name. FAILED_PRECONDITION: it is not
  // there or too old.
  static Status Load(const std::string& path, NcclApi* out);

  // "2.32.3"
  static std::string VersionText(int version);

  int version = 0;

  int (*GetVersion)(int* version);
  int (*GetUniqueId)(NcclUniqueId* id);
  int (*CommInitRankConfig)(NcclComm* comm, int ranks, NcclUniqueId id,
                            int rank, NcclConfig* config);
  int (*CommFinalize)(NcclComm comm);
  int (*CommDestroy)(NcclComm comm);
  int (*CommAbort)(NcclComm comm);
  int (*CommGetAsyncError)(NcclComm comm, int* error);
  const char* (*GetErrorString)(int result);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*AllReduce)(const void* from, void* to, size_t count, int dtype, int op,
                   NcclComm comm, CudaStream stream);
  int (*Reduce)(const void* from, void* to, size_t count, int dtype, int op,
                int root, NcclComm comm, CudaStream stream);
  int (*Broadcast)(const void* from, void* to, size_t count, int dtype,
                   int root, NcclComm comm, CudaStream stream);
  int (*AllGather)(const void* from, void* to, size_t count, int dtype,
                   NcclComm comm, CudaStream stream);
  int (*ReduceScatter)(const void* from, void* to, size_t count, int dtype,
                       int op, NcclComm comm, CudaStream stream);
  int (*Send)(const void* from, size_t count, int dtype, int peer,
              NcclComm comm, CudaStream stream);
  int (*Recv)(void* to, size_t count, int dtype, int peer, NcclComm comm,
              CudaStream stream);

  // Null where the library lacks them.
  const char* (*GetLastError)(NcclComm comm);
  int (*RedOpCreatePreMulSum)(int* op, void* scalar, int dtype, int residence,
                              NcclComm comm);
  int (*RedOpDestroy)(int op, NcclComm comm);
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_NCCL_API_H_
