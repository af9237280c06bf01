// The functions of the CUDA run-time library that the engine uses, looked up at
// run time: the engine is built without CUDA and works where there is none.
//
// Declared after the CUDA Runtime API reference, whose C face has been the same
// since CUDA 11; libraries of versions 11 to 13 have all of these symbols.
#ifndef TFRING_CORE_NCCL_CUDA_API_H_
#define TFRING_CORE_NCCL_CUDA_API_H_

#include <cstddef>
#include <string>

#include "custom_ops/core/common/status.h"

namespace tfring {

using CudaStream = void*;  // cudaStream_t
using CudaEvent = void*;   // cudaEvent_t

// cudaError_t
constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;
// cudaMemcpyKind: by the pointers
constexpr int kCudaMemcpyDefault = 4;
constexpr unsigned kCudaStreamNonBlocking = 1;
constexpr unsigned kCudaEventDisableTiming = 2;
constexpr unsigned kCudaHostAllocPortable = 1;

// cudaMemoryType
constexpr int kCudaMemoryDevice = 2;
constexpr int kCudaMemoryManaged = 3;

// cudaPointerAttributes; CUDA 13 has more at the end.
struct CudaPointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[16];
};

struct CudaApi {
  // `path`: the library's; empty: found by name.
  static Status Load(const std::string& path, CudaApi* out);

  // INTERNAL with CUDA's text, unless `error` is cudaSuccess.
  Status Check(int error, const char* what) const;

  int (*GetDeviceCount)(int* count);
  int (*GetDevice)(int* device);
  int (*SetDevice)(int device);
  int (*DeviceGetPCIBusId)(char* id, int bytes, int device);
  int (*StreamCreateWithFlags)(CudaStream* stream, unsigned flags);
  int (*StreamDestroy)(CudaStream stream);
  int (*StreamWaitEvent)(CudaStream stream, CudaEvent event, unsigned flags);
  int (*StreamSynchronize)(CudaStream stream);
  int (*EventCreateWithFlags)(CudaEvent* event, unsigned flags);
  int (*EventDestroy)(CudaEvent event);
  int (*EventRecord)(CudaEvent event, CudaStream stream);
  int (*EventQuery)(CudaEvent event);
  int (*PointerGetAttributes)(CudaPointerAttributes* out, const void* pointer);
  int (*MemcpyAsync)(void* to, const void* from, size_t bytes, int kind,
                     CudaStream stream);
  int (*Malloc)(void** memory, size_t bytes);
  int (*Free)(void* memory);
  int (*HostAlloc)(void** memory, size_t bytes, unsigned flags);
  int (*FreeHost)(void* memory);
  const char* (*GetErrorString)(int error);

  // Null where the library lacks them.
  int (*DeviceGetStreamPriorityRange)(int* least, int* greatest);
  int (*StreamCreateWithPriority)(CudaStream* stream, unsigned flags,
                                  int priority);
  // The driver's cuCtxGetCurrent: gives null to a thread without a context.
  int (*CtxGetCurrent)(void** context);
};

// Makes `device` the calling thread's while it lives.
//
// A thread that has not used CUDA yet has no context, but cudaGetDevice tells
// 0. Setting that again would make a context on GPU 0, of hundreds of MB, for
// every rank of a host; so such a thread keeps the device that is set here. The
// engine's own threads begin like that, and so set theirs once.
class ScopedDevice {
 public:
  ScopedDevice(const CudaApi& cuda, int device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  Status status() const { return cuda_.Check(error_, "cudaSetDevice"); }

 private:
  const CudaApi& cuda_;
  int restored_ = -1;  // < 0: none
  int error_ = kCudaSuccess;
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_CUDA_API_H_
