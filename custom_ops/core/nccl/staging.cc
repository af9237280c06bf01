#include "custom_ops/core/nccl/staging.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/nccl/backoff.h"

namespace tfring {
namespace {

// How long copies may take to end after an error, as in flights.cc.
constexpr double kEndSeconds = 10.0;

bool IsCut(const Operation& operation, uint64_t bytes, size_t hosts) {
  const bool elementwise =
      operation.kind == TFR_BROADCAST ||
      (operation.kind == TFR_ALLREDUCE && operation.reduce_op != TFR_ADASUM);
  return elementwise && hosts <= 2 && operation.InputBytes() > bytes;
}

// Elements [first, first + count).
OperationTensor SliceOf(const OperationTensor& tensor, uint64_t first,
                        uint64_t count) {
  OperationTensor slice = tensor;
  const uint64_t offset = first * tensor.element_bytes;
  if (slice.input != nullptr) slice.input += offset;
  if (slice.output != nullptr) slice.output += offset;
  slice.count = count;
  slice.bytes = count * tensor.element_bytes;
  return slice;
}

}  // namespace

std::vector<Operation> CutOperation(const Operation& operation, uint64_t bytes,
                                    size_t hosts) {
  if (!IsCut(operation, bytes, hosts)) return {operation};
  Operation empty(operation);
  empty.tensors.clear();
  std::vector<Operation> pieces = {empty};
  uint64_t room = bytes;
  for (const OperationTensor& tensor : operation.tensors) {
    for (uint64_t first = 0; first < tensor.count;) {
      if (room < tensor.element_bytes) {
        pieces.push_back(empty);
        room = std::max(bytes, tensor.element_bytes);
      }
      const uint64_t count =
          std::min(tensor.count - first, room / tensor.element_bytes);
      pieces.back().tensors.push_back(SliceOf(tensor, first, count));
      room -= count * tensor.element_bytes;
      first += count;
    }
  }
  return pieces;
}

StagedPiece::~StagedPiece() {
  gpu_->Return(copied_in_);
  gpu_->Return(copied_out_);
}

bool StagedPiece::Reads(const OperationTensor& tensor) const {
  return tensor.bytes > 0 && tensor.input != nullptr;
}

void StagedPiece::GiveBuffers(std::vector<PinnedBuffer>* to) {
  std::move(buffers_.begin(), buffers_.end(), std::back_inserter(*to));
}

Status StagedPiece::Pin(uint64_t bytes, char** out) {
  PinnedBuffer buffer;
  TFR_RETURN_IF_ERROR(gpu_->Pin(bytes, &buffer));
  *out = buffer.data();
  buffers_.push_back(std::move(buffer));
  return Status::Ok();
}

Status StagedPiece::CopyIn() {
  const size_t tensors = host_.tensors.size();
  bytes_.resize(tensors);
  to_.resize(tensors);
  host_.device = 0;
  host_.allocate = &StagedPiece::Allocate;
  host_.user = this;
  TFR_RETURN_IF_ERROR(gpu_->Wait(gpu_->to_host(), operation_->ready.get()));
  TFR_RETURN_IF_ERROR(gpu_->Wait(gpu_->from_host(), operation_->ready.get()));
  for (size_t t = 0; t < tensors; ++t) {
    OperationTensor& tensor = host_.tensors[t];
    to_[t] = tensor.output;
    bytes_[t] = tensor.output == nullptr ? 0 : tensor.bytes;
    char* memory = nullptr;
    TFR_RETURN_IF_ERROR(Pin(tensor.bytes, &memory));
    if (Reads(tensor)) {
      TFR_RETURN_IF_ERROR(gpu_->cuda().Check(
          gpu_->cuda().MemcpyAsync(memory, tensor.input, tensor.bytes,
                                   kCudaMemcpyDefault, gpu_->to_host()),
          "a copy from the GPU"));
      tensor.input = memory;
    }
    // In place, where outputs have the shape of inputs; else asked for.
    const bool same =
        host_.kind == TFR_ALLREDUCE || host_.kind == TFR_BROADCAST;
    tensor.output = same ? memory : nullptr;
  }
  return gpu_->Mark(gpu_->to_host(), &copied_in_);
}

// The collective asks for an output: one buffer here, and the caller's.
void* StagedPiece::Allocate(void* user, int32_t tensor, int64_t rows) {
  auto* self = static_cast<StagedPiece*>(user);
  const auto t = static_cast<size_t>(tensor);
  const OperationTensor& of = self->host_.tensors[t];
  self->bytes_[t] =
      static_cast<uint64_t>(rows) * self->operation_->RowBytes(of);
  if (self->to_[t] == nullptr && self->operation_->allocate != nullptr) {
    self->asked_ = true;
    self->to_[t] = static_cast<char*>(
        self->operation_->allocate(self->operation_->user, tensor, rows));
  }
  char* memory = nullptr;
  if (self->to_[t] == nullptr || !self->Pin(self->bytes_[t], &memory).ok()) {
    return nullptr;
  }
  self->host_.tensors[t].output = memory;
  return memory;
}

Status StagedPiece::CopyOut() {
  if (asked_) {
    // Whoever had this memory before may still use it in the caller's stream.
    TFR_RETURN_IF_ERROR(gpu_->WaitFor(gpu_->from_host(), operation_->stream));
  }
  for (size_t t = 0; t < host_.tensors.size(); ++t) {
    if (bytes_[t] == 0) continue;
    TFR_RETURN_IF_ERROR(gpu_->cuda().Check(
        gpu_->cuda().MemcpyAsync(to_[t], host_.tensors[t].output, bytes_[t],
                                 kCudaMemcpyDefault, gpu_->from_host()),
        "a copy to the GPU"));
  }
  return gpu_->Mark(gpu_->from_host(), &copied_out_);
}

Status Staging::Run(const RunHost& run, const Await& await) {
  const Status status = RunPieces(run, await);
  if (!status.ok()) AwaitCopies();
  return status;
}

Status Staging::RunPieces(const RunHost& run, const Await& await) {
  TFR_RETURN_IF_ERROR(Fatal(Begin(0, await)));
  for (size_t k = 0; k < pieces_.size(); ++k) {
    if (k + 1 < pieces_.size()) {
      TFR_RETURN_IF_ERROR(Fatal(Begin(k + 1, await)));
    }
    StagedPiece* const piece = ring_[k % kRing].get();
    TFR_RETURN_IF_ERROR(Fatal(await(piece->copied_in())));
    TFR_RETURN_IF_ERROR(run(piece->host()));
    TFR_RETURN_IF_ERROR(Fatal(piece->CopyOut()));
  }
  return Status::Ok();
}

Status Staging::Begin(size_t k, const Await& await) {
  std::unique_ptr<StagedPiece>* const slot = &ring_[k % kRing];
  if (*slot != nullptr) {
    TFR_RETURN_IF_ERROR(await((*slot)->copied_out()));
    slot->reset();  // gives its memory to the next
  }
  *slot = std::make_unique<StagedPiece>(gpu_, &pieces_[k]);
  return (*slot)->CopyIn();
}

void Staging::AwaitCopies() {
  const Deadline deadline = Deadline::After(kEndSeconds);
  for (const CudaStream stream : {gpu_->to_host(), gpu_->from_host()}) {
    CudaEvent end = nullptr;
    if (!gpu_->Mark(stream, &end).ok()) continue;
    Backoff backoff;
    while (gpu_->cuda().EventQuery(end) == kCudaNotReady) {
      if (deadline.expired()) {
        gpu_->GiveUp();
        break;
      }
      backoff.Pause();
    }
    gpu_->Return(end);
  }
}

std::vector<PinnedBuffer> Staging::TakeBuffers() {
  std::vector<PinnedBuffer> buffers;
  for (const auto& piece : ring_) {
    if (piece != nullptr) piece->GiveBuffers(&buffers);
  }
  return buffers;
}

}  // namespace tfring
