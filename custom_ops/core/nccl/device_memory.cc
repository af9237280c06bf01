#include "custom_ops/core/nccl/device_memory.h"

namespace tfring {

Status DeviceMemory::Load() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!tried_) loaded_ = CudaApi::Load(cudart_, &cuda_);
  tried_ = true;
  return loaded_;
}

Status DeviceMemory::DeviceOf(const void* memory, int* device) {
  TFR_RETURN_IF_ERROR(Load());
  CudaPointerAttributes found = {};
  TFR_RETURN_IF_ERROR(cuda_.Check(cuda_.PointerGetAttributes(&found, memory),
                                  "cudaPointerGetAttributes"));
  if (found.type != kCudaMemoryDevice && found.type != kCudaMemoryManaged) {
    return InvalidArgument(
        StrCat("memory of a GPU was expected, but the CUDA run-time library "
               "knows none at ",
               memory, " (memory type ", found.type, ")"));
  }
  *device = found.device;
  return Status::Ok();
}

Status DeviceMemory::Copy(void* to, const void* from, uint64_t bytes,
                          CudaStream stream) {
  TFR_RETURN_IF_ERROR(Load());
  TFR_RETURN_IF_ERROR(cuda_.Check(
      cuda_.MemcpyAsync(to, from, bytes, kCudaMemcpyDefault, stream),
      "cudaMemcpyAsync"));
  return cuda_.Check(cuda_.StreamSynchronize(stream), "cudaStreamSynchronize");
}

Status DeviceMemory::Allocate(int device, uint64_t bytes, void** memory) {
  TFR_RETURN_IF_ERROR(Load());
  const ScopedDevice current(cuda_, device);
  TFR_RETURN_IF_ERROR(current.status());
  const Status status = cuda_.Check(cuda_.Malloc(memory, bytes), "cudaMalloc");
  return status.ok() ? status : ResourceExhausted(status.message());
}

void DeviceMemory::Free(void* memory) {
  if (memory != nullptr && Load().ok()) cuda_.Free(memory);
}

}  // namespace tfring
