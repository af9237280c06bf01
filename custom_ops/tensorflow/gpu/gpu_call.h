// One execution of a collective op on a GPU: from the kernel's call until the
// engine has called back.
#ifndef TFRING_TENSORFLOW_GPU_GPU_CALL_H_
#define TFRING_TENSORFLOW_GPU_GPU_CALL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/tensorflow/request.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

class GpuCall {
 public:
  using Done = tensorflow::AsyncOpKernel::DoneCallback;

  // Starts the collective and returns at once; `done` is called exactly once.
  static void Start(const CollectiveArguments& attributes,
                    tensorflow::OpKernelContext* context, Done done);

 private:
  GpuCall(const CollectiveArguments& attributes,
          tensorflow::OpKernelContext* context, Done done);

  absl::Status Submit();
  // Describes tensor i, which stays in the context until the op is done.
  absl::Status Bind(int i, tfr_tensor* tensor);
  absl::Status BindSplits();
  tfr_request Describe(const std::vector<tfr_tensor>& tensors);
  absl::Status SetCounts();
  // Ends the op and deletes this.
  void Finish(const absl::Status& status);

  static void* Allocate(void* user, int32_t tensor, int64_t rows);
  static void Ended(void* user, const tfr_error* error);

  const CollectiveArguments& attributes_;
  tensorflow::OpKernelContext* const context_;
  Done done_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<int64_t> splits_;
  std::vector<int64_t> counts_;
  std::string fault_;
};

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_GPU_GPU_CALL_H_
