#include "custom_ops/tensorflow/pending_call.h"

#include <cstring>
#include <utility>

#include "custom_ops/tensorflow/adapter.h"
#include "custom_ops/tensorflow/world_holder.h"

namespace tfring {
namespace {

void* BufferOf(const ScopedTensor& tensor) {
  return NotNull(TF_TensorData(tensor.get()));
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

// How much of the collective TensorFlow's thread may do.
tfr_patience PatienceOf(const CollectiveAttributes& attributes) {
  // A join waits for ranks that have other things to do.
  if (attributes.kind == TFR_JOIN) return TFR_HAND_OVER;
  return attributes.eager ? TFR_LINGER : TFR_LOOK;
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
  const bool has_splits = attributes.kind == TFR_ALLTOALL;
  call->slots_.resize(TF_NumInputs(context) - (has_splits ? 1 : 0));
  std::vector<tfr_tensor> tensors(call->slots_.size());
  for (size_t i = 0; i < tensors.size() && Ok(status); ++i) {
    call->Bind(static_cast<int>(i), &tensors[i], status.get());
  }
  if (has_splits && Ok(status)) call->BindSplits(status.get());
  if (!Ok(status)) {
    call->Finish(TF_GetCode(status.get()), TF_Message(status.get()));
    return;
  }
  if (attributes.kind == TFR_JOIN) call->counts_.resize(1);
  tfr_request request = call->Describe(tensors);
  const std::string fault =
      has_splits ? SplitsFault(call->GivenSplits(), call->counts_.size(),
                               call->slots_.size())
                 : "";
  if (!fault.empty()) request.fault = fault.c_str();
  // After an accepted request `call` may already be gone.
  tfr_error error;
  if (CurrentWorld().Submit(request, &error) != TFR_OK) {
    call->Finish(error.code, error.text);
  }
}

void PendingCall::Bind(int i, tfr_tensor* tensor, TF_Status* status) {
  Slot* slot = &slots_[i];
  slot->input = GetInput(context_, i, status);
  if (TF_GetCode(status) != TF_OK) return;
  slot->dims = DimsOf(slot->input);
  slot->dtype = TF_TensorType(slot->input.get());
  if (attributes_.keeps_shapes()) BindOutput(i, slot, status);
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

void PendingCall::BindSplits(TF_Status* status) {
  splits_ = GetInput(context_, static_cast<int>(slots_.size()), status);
  counts_.resize(slots_.size() * static_cast<size_t>(tfring_tf_set_size(
                                     attributes_.process_set)));
}

size_t PendingCall::GivenSplits() const {
  return splits_ ? static_cast<size_t>(TF_TensorElementCount(splits_.get()))
                 : 0;
}

tfr_request PendingCall::Describe(const std::vector<tfr_tensor>& tensors) {
  tfr_request request = attributes_.Describe(tensors, &counts_);
  if (GivenSplits() > 0) {
    request.splits = static_cast<const int64_t*>(TF_TensorData(splits_.get()));
  }
  request.allocate = &PendingCall::Allocate;
  request.done = &PendingCall::Done;
  request.user = this;
  request.patience = PatienceOf(attributes_);
  return request;
}

void* PendingCall::Allocate(void* user, int32_t tensor, int64_t rows) {
  auto* call = static_cast<PendingCall*>(user);
  Slot* slot = &call->slots_[tensor];
  std::vector<int64_t> dims = slot->dims;
  if (dims.empty()) return nullptr;
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

void PendingCall::SetCounts(TF_Status* status) {
  if (attributes_.kind == TFR_JOIN) {
    const ScopedTensor output(TF_AllocateOutput(context_, 0, TF_INT32, nullptr,
                                                0, sizeof(int32_t), status));
    if (TF_GetCode(status) != TF_OK) return;
    *static_cast<int32_t*>(TF_TensorData(output.get())) =
        static_cast<int32_t>(counts_[0]);
  } else if (attributes_.kind == TFR_ALLTOALL) {
    const auto tensors = static_cast<int64_t>(slots_.size());
    const auto numbers = static_cast<int64_t>(counts_.size());
    const int64_t dims[] = {tensors, numbers / tensors};
    const size_t bytes = counts_.size() * sizeof(int64_t);
    const ScopedTensor output(
        TF_AllocateOutput(context_, static_cast<int>(slots_.size()), TF_INT64,
                          dims, 2, bytes, status));
    if (TF_GetCode(status) != TF_OK) return;
    std::memcpy(TF_TensorData(output.get()), counts_.data(), bytes);
  }
}

void PendingCall::Fail(int code, const char* text) {
  const ScopedStatus status = NewStatus();
  TF_SetStatus(status.get(), static_cast<TF_Code>(CodeForTensorFlow(code)),
               text);
  TF_OpKernelContext_Failure(context_, status.get());
}

void PendingCall::Finish(int code, const char* text) {
  const ScopedStatus status = NewStatus();
  if (code == TFR_OK) SetCounts(status.get());
  if (code != TFR_OK) {
    Fail(code, text);
  } else if (!Ok(status)) {
    Fail(TF_GetCode(status.get()), TF_Message(status.get()));
  }
  const std::function<void()> done = std::move(done_);
  // Before `done`: the next op may want to take over our buffers.
  delete this;
  done();
}

}  // namespace tfring
