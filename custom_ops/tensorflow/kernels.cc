// One asynchronous CPU kernel for all collectives: it hands pointers to the
// engine and returns, so it never holds one of TensorFlow's threads for longer
// than a small collective takes that all ranks have (see tfr_patience).
#include "tensorflow/c/kernels.h"

#include <functional>
#include <memory>

#include "custom_ops/tensorflow/attributes.h"
#include "custom_ops/tensorflow/pending_call.h"
#include "custom_ops/tensorflow/scoped.h"

namespace tfring {
namespace {

template <tfr_kind kind>
void* CreateKernel(TF_OpKernelConstruction* construction) {
  auto attributes = std::make_unique<CollectiveAttributes>();
  attributes->kind = kind;
  const ScopedStatus status = NewStatus();
  ReadAttributes(construction, attributes.get(), status.get());
  if (!Ok(status)) {
    TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  return attributes.release();
}

void ComputeKernel(void* kernel, TF_OpKernelContext* context,
                   TF_AsyncOpKernelDoneCallback* done_pointer) {
  // TensorFlow passes a pointer to a std::function on its own stack, which is
  // gone when this function returns: only a copy may be kept.
  // tests/unit/test_ops.py::test_many_asynchronous_ops crashes without it.
  std::function<void()> done =
      *reinterpret_cast<std::function<void()>*>(done_pointer);
  PendingCall::Start(*static_cast<const CollectiveAttributes*>(kernel), context,
                     std::move(done));
}

void DeleteKernel(void* kernel) {
  delete static_cast<CollectiveAttributes*>(kernel);
}

template <tfr_kind kind>
bool RegisterKernel(const char* op) {
  const ScopedStatus status = NewStatus();
  TF_RegisterKernelBuilder(
      op,
      TF_NewAsyncKernelBuilder(op, "CPU", &CreateKernel<kind>, &ComputeKernel,
                               &DeleteKernel),
      status.get());
  return Ok(status);
}

// Registered when TensorFlow loads this library; a kernel that is missing is
// reported by TensorFlow with the op's name.
[[maybe_unused]] const bool registered =
    RegisterKernel<TFR_ALLREDUCE>("TfringAllreduce") &&
    RegisterKernel<TFR_ALLGATHER>("TfringAllgather") &&
    RegisterKernel<TFR_BROADCAST>("TfringBroadcast") &&
    RegisterKernel<TFR_REDUCESCATTER>("TfringReducescatter") &&
    RegisterKernel<TFR_ALLTOALL>("TfringAlltoall") &&
    RegisterKernel<TFR_BARRIER>("TfringBarrier") &&
    RegisterKernel<TFR_JOIN>("TfringJoin");

}  // namespace
}  // namespace tfring
