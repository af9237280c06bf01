// Kernels of the ops for GPUs, on TensorFlow's C++ API: its C API hides the
// stream of a GPU (TF_GetStream is for plug-in devices). That API changes with
// each TensorFlow, so this library is built where it is used, against the
// TensorFlow found there: see tfring/gpu_build.py.
//
// The kernels hand pointers and the stream to the engine and return; the engine
// orders its own stream behind the op's, and calls back when the results are
// there. Meanwhile TensorFlow goes on with the backward pass.
#include <cstdint>
#include <cstring>
#include <utility>

#include "custom_ops/tensorflow/gpu/gpu_call.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {
namespace {

// A float64's bits, see attributes.cc.
absl::Status ReadFactor(tensorflow::OpKernelConstruction* construction,
                        const char* name, double* value) {
  int64_t bits = 0;
  const absl::Status read = construction->GetAttr(name, &bits);
  std::memcpy(value, &bits, sizeof(bits));
  return read;
}

absl::Status ReadInt(tensorflow::OpKernelConstruction* construction,
                     const char* name, int32_t* value) {
  int64_t wide = 0;
  const absl::Status read = construction->GetAttr(name, &wide);
  *value = static_cast<int32_t>(wide);
  return read;
}

template <tfr_kind kind>
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* construction)
      : AsyncOpKernel(construction) {
    attributes_.kind = kind;
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("tensor_name", &attributes_.name));
    OP_REQUIRES_OK(construction, construction->GetAttr(
                                     "process_set", &attributes_.process_set));
    if (kind == TFR_BROADCAST) {
      OP_REQUIRES_OK(construction,
                     ReadInt(construction, "root", &attributes_.root));
    }
    if (kind == TFR_ALLREDUCE) {
      OP_REQUIRES_OK(construction, ReadInt(construction, "wire_dtype",
                                           &attributes_.wire_dtype));
    }
    if (kind != TFR_ALLREDUCE && kind != TFR_REDUCESCATTER) return;
    OP_REQUIRES_OK(construction,
                   ReadInt(construction, "reduce_op", &attributes_.reduce_op));
    OP_REQUIRES_OK(construction, ReadFactor(construction, "prescale_bits",
                                            &attributes_.prescale));
    OP_REQUIRES_OK(construction, ReadFactor(construction, "postscale_bits",
                                            &attributes_.postscale));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context,
                    DoneCallback done) override {
    GpuCall::Start(attributes_, context, std::move(done));
  }

 private:
  CollectiveArguments attributes_;
};

REGISTER_KERNEL_BUILDER(Name("TfringAllreduce").Device(tensorflow::DEVICE_GPU),
                        CollectiveKernel<TFR_ALLREDUCE>);
REGISTER_KERNEL_BUILDER(Name("TfringAllgather").Device(tensorflow::DEVICE_GPU),
                        CollectiveKernel<TFR_ALLGATHER>);
REGISTER_KERNEL_BUILDER(Name("TfringBroadcast").Device(tensorflow::DEVICE_GPU),
                        CollectiveKernel<TFR_BROADCAST>);
REGISTER_KERNEL_BUILDER(
    Name("TfringReducescatter").Device(tensorflow::DEVICE_GPU),
    CollectiveKernel<TFR_REDUCESCATTER>);
REGISTER_KERNEL_BUILDER(Name("TfringAlltoall")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("splits")
                            .HostMemory("received_splits"),
                        CollectiveKernel<TFR_ALLTOALL>);

}  // namespace
}  // namespace tfring

// The TensorFlow that this was compiled against.
extern "C" __attribute__((visibility("default"))) const char*
tfring_gpu_tensorflow_version() {
  return TFRING_TENSORFLOW_VERSION;
}
