// The engine's own declarations of CUDA and NCCL, held against NVIDIA's
// headers. Compiled by wheel.py, never run.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>

#include "custom_ops/core/nccl/nccl_api.h"

namespace tfring {

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(kNcclSuccess == ncclSuccess && kNcclInProgress == ncclInProgress);
static_assert(kNcclSum == ncclSum && kNcclProd == ncclProd);
static_assert(kNcclMax == ncclMax && kNcclMin == ncclMin);
static_assert(kNcclInt8 == ncclInt8 && kNcclUint8 == ncclUint8);
static_assert(kNcclInt32 == ncclInt32 && kNcclInt64 == ncclInt64);
static_assert(kNcclFloat16 == ncclFloat16 && kNcclBfloat16 == ncclBfloat16);
static_assert(kNcclFloat32 == ncclFloat32 && kNcclFloat64 == ncclFloat64);
static_assert(kNcclScalarHostImmediate == ncclScalarHostImmediate);

#define SAME_PLACE(ours, theirs) \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cga_cluster_size, cgaClusterSize);
SAME_PLACE(min_ctas, minCTAs);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);

static_assert(kCudaSuccess == cudaSuccess);
static_assert(kCudaNotReady == cudaErrorNotReady);
static_assert(kCudaMemcpyDefault == cudaMemcpyDefault);
static_assert(kCudaStreamNonBlocking == cudaStreamNonBlocking);
static_assert(kCudaEventDisableTiming == cudaEventDisableTiming);
static_assert(kCudaHostAllocPortable == cudaHostAllocPortable);

}  // namespace tfring
