// A collective of GPU tensors by way of host memory: inputs are copied into
// pinned buffers, the collective runs there as one of CPU tensors, and its
// outputs are copied back. Works for every kind, dtype and operation, with any
// GPUs and without NCCL, and gives the bits of CPU tensors.
//
// Each rank copies its inputs out and its outputs in, 2 passes over the bus. A
// large allreduce or broadcast is cut into pieces: while one is exchanged, the
// next is copied out and the one before is copied back. So it takes the longest
// of the three, and kRing pieces of pinned memory whatever its size. The other
// kinds, whose outputs are asked for, are one piece, and so is Adasum, which
// needs all elements at once; over three or more hosts everything is, since
// there the order of reduction depends on where in the list an element lies.
#ifndef TFRING_CORE_NCCL_STAGING_H_
#define TFRING_CORE_NCCL_STAGING_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/gpu.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// Ends the world, whatever it was: the other ranks are on their way.
inline Status Fatal(const Status& status) {
  return status.ok() ? status : Internal(status.message());
}

// `operation` in pieces of at most `bytes`, the same on all ranks; itself where
// it cannot be cut. `hosts`: how many take part.
std::vector<Operation> CutOperation(const Operation& operation, uint64_t bytes,
                                    size_t hosts);

// One piece.
class StagedPiece {
 public:
  // Of `operation`, whose buffers are the GPU's.
  StagedPiece(Gpu* gpu, Operation* operation)
      : gpu_(gpu), operation_(operation), host_(*operation) {}
  ~StagedPiece();
  StagedPiece(const StagedPiece&) = delete;
  StagedPiece& operator=(const StagedPiece&) = delete;

  // Asks for copies of the inputs, in the stream to_host().
  Status CopyIn();
  // Asks for copies of the outputs, in the stream from_host().
  Status CopyOut();
  // The same operation on buffers of the host.
  Operation* host() { return &host_; }
  // Behind the copies.
  CudaEvent copied_in() const { return copied_in_; }
  CudaEvent copied_out() const { return copied_out_; }
  void GiveBuffers(std::vector<PinnedBuffer>* to);

 private:
  bool Reads(const OperationTensor& tensor) const;
  Status Pin(uint64_t bytes, char** out);
  static void* Allocate(void* user, int32_t tensor, int64_t rows);

  Gpu* const gpu_;
  Operation* const operation_;
  Operation host_;
  CudaEvent copied_in_ = nullptr;
  CudaEvent copied_out_ = nullptr;
  std::vector<PinnedBuffer> buffers_;
  std::vector<uint64_t> bytes_;  // of outputs
  std::vector<char*> to_;        // outputs that were asked for
  bool asked_ = false;
};

class Staging {
 public:
  using RunHost = std::function<Status(Operation*)>;
  // Waits on the host for an event of the GPU.
  using Await = std::function<Status(CudaEvent)>;

  static constexpr size_t kRing = 3;

  Staging(Gpu* gpu, std::vector<Operation> pieces)
      : gpu_(gpu), pieces_(std::move(pieces)) {}

  // Copies inputs, runs the collective, asks for the copies back. After an
  // error no copy is under way.
  Status Run(const RunHost& run, const Await& await);

  // They are in the stream from_host() then, and need these until they end.
  std::vector<PinnedBuffer> TakeBuffers();

 private:
  Status RunPieces(const RunHost& run, const Await& await);
  Status Begin(size_t k, const Await& await);
  void AwaitCopies();

  Gpu* const gpu_;
  std::vector<Operation> pieces_;
  std::array<std::unique_ptr<StagedPiece>, kRing> ring_;
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_STAGING_H_
