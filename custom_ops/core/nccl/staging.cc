#include "custom_ops/core/nccl/staging.h"

namespace tfring {

bool Staging::Reads(const OperationTensor& tensor) const {
  return tensor.bytes > 0 && tensor.input != nullptr;
}

Status Staging::Pin(uint64_t bytes, char** out) {
  PinnedBuffer buffer;
  TFR_RETURN_IF_ERROR(gpu_->Pin(bytes, &buffer));
  *out = buffer.data();
  buffers_.push_back(std::move(buffer));
  return Status::Ok();
}

Status Staging::Run(const RunHost& run, const Await& await) {
  TFR_RETURN_IF_ERROR(Fatal(CopyIn(await)));
  TFR_RETURN_IF_ERROR(run(&host_));
  return Fatal(CopyOut());
}

Status Staging::CopyIn(const Await& await) {
  const size_t tensors = host_.tensors.size();
  bytes_.resize(tensors);
  to_.resize(tensors);
  host_.device = 0;
  host_.allocate = &Staging::Allocate;
  host_.user = this;
  TFR_RETURN_IF_ERROR(gpu_->Wait(gpu_->to_host(), operation_->ready));
  TFR_RETURN_IF_ERROR(gpu_->Wait(gpu_->from_host(), operation_->ready));
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
  CudaEvent copied = nullptr;
  TFR_RETURN_IF_ERROR(gpu_->Mark(gpu_->to_host(), &copied));
  const Status status = await(copied);
  gpu_->Return(copied);
  return status;
}

// The collective asks for an output: one buffer here, and the caller's.
void* Staging::Allocate(void* user, int32_t tensor, int64_t rows) {
  auto* self = static_cast<Staging*>(user);
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

Status Staging::CopyOut() {
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
  return Status::Ok();
}

}  // namespace tfring
