#include "custom_ops/tensorflow/gpu/gpu_call.h"

#include <cstring>
#include <utility>

#include "custom_ops/tensorflow/adapter.h"
#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace tfring {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

void* BufferOf(const Tensor& tensor) {
  return NotNull(tensor.tensor_data().data());
}

absl::Status ToTensorFlow(const tfr_error& error) {
  return absl::Status(
      static_cast<absl::StatusCode>(CodeForTensorFlow(error.code)), error.text);
}

}  // namespace

GpuCall::GpuCall(const CollectiveArguments& attributes,
                 tensorflow::OpKernelContext* context, Done done)
    : attributes_(attributes), context_(context), done_(std::move(done)) {}

void GpuCall::Start(const CollectiveArguments& attributes,
                    tensorflow::OpKernelContext* context, Done done) {
  auto* const call = new GpuCall(attributes, context, std::move(done));
  // After a successful submission the call may be gone.
  const absl::Status submitted = call->Submit();
  if (!submitted.ok()) call->Finish(submitted);
}

absl::Status GpuCall::Submit() {
  const bool has_splits = attributes_.kind == TFR_ALLTOALL;
  const int count = context_->num_inputs() - (has_splits ? 1 : 0);
  std::vector<tfr_tensor> tensors(static_cast<size_t>(count));
  dims_.resize(tensors.size());
  for (int i = 0; i < count; ++i) {
    const absl::Status bound = Bind(i, &tensors[static_cast<size_t>(i)]);
    if (!bound.ok()) return bound;
  }
  if (has_splits) {
    const absl::Status bound = BindSplits();
    if (!bound.ok()) return bound;
  }
  const tfr_request request = Describe(tensors);
  tfr_error error;
  if (tfring_tf_submit(&request, &error) == TFR_OK) return absl::OkStatus();
  return ToTensorFlow(error);
}

absl::Status GpuCall::Bind(int i, tfr_tensor* tensor) {
  const Tensor& input = context_->input(i);
  std::vector<int64_t>& dims = dims_[static_cast<size_t>(i)];
  for (int d = 0; d < input.dims(); ++d) dims.push_back(input.dim_size(d));
  tensor->input = BufferOf(input);
  tensor->output = nullptr;
  tensor->dims = dims.data();
  tensor->ndims = static_cast<int32_t>(dims.size());
  tensor->dtype = static_cast<int32_t>(input.dtype());
  if (!attributes_.keeps_shapes()) return absl::OkStatus();
  Tensor* output = nullptr;
  const absl::Status allocated = context_->forward_input_or_allocate_output(
      {i}, i, input.shape(), &output);
  if (allocated.ok()) tensor->output = BufferOf(*output);
  return allocated;
}

absl::Status GpuCall::BindSplits() {
  const Tensor& splits = context_->input(context_->num_inputs() - 1);
  const auto ranks =
      static_cast<size_t>(tfring_tf_set_size(attributes_.process_set));
  counts_.resize(dims_.size() * ranks);
  const auto flat = splits.flat<int64_t>();
  splits_.assign(flat.data(), flat.data() + flat.size());
  fault_ = SplitsFault(splits_.size(), counts_.size(), dims_.size());
  return absl::OkStatus();
}

tfr_request GpuCall::Describe(const std::vector<tfr_tensor>& tensors) {
  stream_executor::Stream* const stream =
      context_->op_device_context()->stream();
  tfr_request request = attributes_.Describe(tensors, &counts_);
  request.splits = splits_.empty() ? nullptr : splits_.data();
  request.fault = fault_.empty() ? nullptr : fault_.c_str();
  request.allocate = &GpuCall::Allocate;
  request.done = &GpuCall::Ended;
  request.user = this;
  // CUDA's number of it in this process, which may differ from TensorFlow's.
  request.device = stream->parent()->device_ordinal() + 1;
  request.stream = stream->platform_specific_handle().stream;
  return request;
}

void* GpuCall::Allocate(void* user, int32_t tensor, int64_t rows) {
  auto* const call = static_cast<GpuCall*>(user);
  std::vector<int64_t> dims = call->dims_[static_cast<size_t>(tensor)];
  if (dims.empty()) return nullptr;
  dims[0] = rows;
  Tensor* output = nullptr;
  const absl::Status allocated =
      call->context_->allocate_output(tensor, TensorShape(dims), &output);
  return allocated.ok() ? BufferOf(*output) : nullptr;
}

absl::Status GpuCall::SetCounts() {
  if (attributes_.kind != TFR_ALLTOALL) return absl::OkStatus();
  const auto tensors = static_cast<int64_t>(dims_.size());
  const auto numbers = static_cast<int64_t>(counts_.size());
  Tensor* output = nullptr;
  const absl::Status allocated = context_->allocate_output(
      static_cast<int>(tensors), TensorShape({tensors, numbers / tensors}),
      &output);
  if (!allocated.ok()) return allocated;
  std::memcpy(output->flat<int64_t>().data(), counts_.data(),
              counts_.size() * sizeof(int64_t));
  return absl::OkStatus();
}

void GpuCall::Ended(void* user, const tfr_error* error) {
  auto* const call = static_cast<GpuCall*>(user);
  call->Finish(error->code == TFR_OK ? call->SetCounts()
                                     : ToTensorFlow(*error));
}

void GpuCall::Finish(const absl::Status& status) {
  if (!status.ok()) context_->SetStatus(status);
  const Done done = std::move(done_);
  delete this;
  done();
}

}  // namespace tfring
