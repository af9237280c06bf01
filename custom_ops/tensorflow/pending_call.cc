#include "custom_ops/tensorflow/pending_call.h"

#include <utility>

#include "custom_ops/tensorflow/world_holder.h"

namespace tfring {
namespace {

// The engine takes NULL for "not there", TensorFlow gives it for "empty".
void* BufferOf(const ScopedTensor& tensor) {
  static char empty;
  void* data = TF_TensorData(tensor.get());
  return data == nullptr ? &empty : data;
}

ScopedTensor GetInput(TF_OpKernelContext* context, int i, TF_Status* status) {
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, i, &tensor, status);
  return ScopedTensor(tensor);
}

std::vector<int64_t> DimsOf(const ScopedTensor& tensor) {
  std::vector<int64_t> dims(TF_NumDims(tensor.get()));
  for (size_t d = 0; d < dims.size(); ++d) {
    dims[d] = TF_Dim(tensor.get(), static_cast<int>(d));
  }
  return dims;
}

}  // namespace

PendingCall::PendingCall(const CollectiveAttributes& attributes,
                         TF_OpKernelContext* context,
                         std::function<void()> done)
    : attributes_(attributes), context_(context), done_(std::move(done)) {}

void PendingCall::Start(const CollectiveAttributes& attributes,
                        TF_OpKernelContext* context,
                        std::function<void()> done) {
  auto* call = new PendingCall(attributes, context, std::move(done));
  const ScopedStatus status = NewStatus();
  call->slots_.resize(TF_NumInputs(context));
  std::vector<tfr_tensor> tensors(call->slots_.size());
  for (size_t i = 0; i < tensors.size() && Ok(status); ++i) {
    call->Bind(static_cast<int>(i), &tensors[i], status.get());
  }
  if (!Ok(status)) {
    call->Finish(TF_GetCode(status.get()), TF_Message(status.get()));
    return;
  }
  // After an accepted request `call` may already be gone.
  tfr_error error;
  if (CurrentWorld().Submit(call->Describe(tensors), &error) != TFR_OK) {
    call->Finish(error.code, error.text);
  }
}

void PendingCall::Bind(int i, tfr_tensor* tensor, TF_Status* status) {
  Slot* slot = &slots_[i];
  slot->input = GetInput(context_, i, status);
  if (TF_GetCode(status) != TF_OK) return;
  slot->dims = DimsOf(slot->input);
  slot->dtype = TF_TensorType(slot->input.get());
  if (attributes_.kind != TFR_ALLGATHER) BindOutput(i, slot, status);
  if (TF_GetCode(status) != TF_OK) return;
  tensor->output = slot->output ? BufferOf(slot->output) : nullptr;
  tensor->input = slot->input ? BufferOf(slot->input) : tensor->output;
  tensor->dims = slot->dims.data();
  tensor->ndims = static_cast<int32_t>(slot->dims.size());
  tensor->dtype = static_cast<int32_t>(slot->dtype);
}

void PendingCall::BindOutput(int i, Slot* slot, TF_Status* status) {
  // TensorFlow gives the input's buffer to the output only while nobody else
  // holds it, and that includes us.
  slot->input.reset();
  int forwarded = -1;
  slot->output.reset(TF_ForwardInputOrAllocateOutput(
      context_, &i, 1, i, slot->dims.data(),
      static_cast<int>(slot->dims.size()), &forwarded, status));
  if (TF_GetCode(status) != TF_OK || forwarded == i) return;
  slot->input = GetInput(context_, i, status);
}

tfr_request PendingCall::Describe(const std::vector<tfr_tensor>& tensors) {
  tfr_request request = {};
  request.name = attributes_.name.c_str();
  request.kind = attributes_.kind;
  request.reduce_op = attributes_.reduce_op;
  request.root = attributes_.root;
  request.tensor_count = static_cast<int32_t>(tensors.size());
  request.tensors = tensors.data();
  request.prescale = attributes_.prescale;
  request.postscale = attributes_.postscale;
  request.allocate = &PendingCall::Allocate;
  request.done = &PendingCall::Done;
  request.user = this;
  return request;
}

void* PendingCall::Allocate(void* user, int32_t tensor, int64_t rows) {
  auto* call = static_cast<PendingCall*>(user);
  Slot* slot = &call->slots_[tensor];
  std::vector<int64_t> dims = slot->dims;
  dims[0] = rows;
  size_t bytes = TF_DataTypeSize(slot->dtype);
  for (const int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  const ScopedStatus status = NewStatus();
  slot->output.reset(
      TF_AllocateOutput(call->context_, tensor, slot->dtype, dims.data(),
                        static_cast<int>(dims.size()), bytes, status.get()));
  return Ok(status) ? BufferOf(slot->output) : nullptr;
}

void PendingCall::Done(void* user, const tfr_error* error) {
  static_cast<PendingCall*>(user)->Finish(error->code, error->text);
}

namespace {

// A lost peer is ABORTED to TensorFlow: its executor turns the UNAVAILABLE of
// an op it does not know as communication into INTERNAL.
TF_Code ToTensorFlow(int code) {
  return code == TFR_UNAVAILABLE ? TF_ABORTED : static_cast<TF_Code>(code);
}

}  // namespace

void PendingCall::Finish(int code, const char* text) {
  if (code != TFR_OK) {
    const ScopedStatus status = NewStatus();
    TF_SetStatus(status.get(), ToTensorFlow(code), text);
    TF_OpKernelContext_Failure(context_, status.get());
  }
  const std::function<void()> done = std::move(done_);
  // Before `done`: the next op may want to take over our buffers.
  delete this;
  done();
}

}  // namespace tfring
