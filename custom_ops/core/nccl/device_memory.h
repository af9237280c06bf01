// Memory of GPUs for callers of the engine that have pointers into it but no
// CUDA of their own: the C face's tfr_device_ functions. The library is loaded
// when it is first needed.
#ifndef TFRING_CORE_NCCL_DEVICE_MEMORY_H_
#define TFRING_CORE_NCCL_DEVICE_MEMORY_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/cuda_api.h"

namespace tfring {

class DeviceMemory {
 public:
  // `cudart`: the library's path; empty: found by name.
  explicit DeviceMemory(std::string cudart) : cudart_(std::move(cudart)) {}

  // Number of the device in whose memory `memory` is. INVALID_ARGUMENT: it is
  // in no GPU's.
  Status DeviceOf(const void* memory, int* device);
  // Either way between host and device, behind the stream's work; waits for it.
  Status Copy(void* to, const void* from, uint64_t bytes, CudaStream stream);
  // RESOURCE_EXHAUSTED: there is none left.
  Status Allocate(int device, uint64_t bytes, void** memory);
  void Free(void* memory);

 private:
  Status Load();

  const std::string cudart_;
  std::mutex mutex_;
  bool tried_ = false;  // guarded by mutex_
  Status loaded_;       // guarded by mutex_
  CudaApi cuda_ = {};   // set once, under mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_DEVICE_MEMORY_H_
