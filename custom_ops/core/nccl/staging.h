// A collective of GPU tensors by way of host memory: inputs are copied into
// pinned buffers, the collective runs there as one of CPU tensors, and its
// outputs are copied back. Works for every kind, dtype and operation, with any
// GPUs and without NCCL, and gives the bits of CPU tensors.
//
// Each rank copies its inputs out and its outputs in, 2 passes over the bus.
// The copy back overlaps with the next collective.
#ifndef TFRING_CORE_NCCL_STAGING_H_
#define TFRING_CORE_NCCL_STAGING_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/gpu.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// Ends the world, whatever it was: the other ranks are on their way.
inline Status Fatal(const Status& status) {
  return status.ok() ? status : Internal(status.message());
}

class Staging {
 public:
  using RunHost = std::function<Status(Operation*)>;
  // Waits on the host for an event of the GPU.
  using Await = std::function<Status(CudaEvent)>;

  // Of `operation`, whose buffers are the GPU's.
  Staging(Gpu* gpu, Operation* operation)
      : gpu_(gpu), operation_(operation), host_(*operation) {}

  // Copies inputs, runs the collective, asks for the copies back.
  Status Run(const RunHost& run, const Await& await);

  // They are in the stream from_host() then, and need these until they end.
  std::vector<PinnedBuffer> TakeBuffers() { return std::move(buffers_); }

 private:
  Status CopyIn(const Await& await);
  Status CopyOut();
  bool Reads(const OperationTensor& tensor) const;
  Status Pin(uint64_t bytes, char** out);
  static void* Allocate(void* user, int32_t tensor, int64_t rows);

  Gpu* const gpu_;
  Operation* const operation_;
  Operation host_;  // the same on buffers of the host
  std::vector<PinnedBuffer> buffers_;
  std::vector<uint64_t> bytes_;  // of outputs
  std::vector<char*> to_;        // outputs that were asked for
  bool asked_ = false;
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_STAGING_H_
