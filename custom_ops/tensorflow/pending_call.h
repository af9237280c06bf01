// One execution of a collective op: from the kernel's call until the engine
// has called back.
#ifndef TFRING_TENSORFLOW_PENDING_CALL_H_
#define TFRING_TENSORFLOW_PENDING_CALL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "custom_ops/core/tfring.h"
#include "custom_ops/tensorflow/attributes.h"
#include "custom_ops/tensorflow/scoped.h"
#include "tensorflow/c/kernels.h"

namespace tfring {

class PendingCall {
 public:
  // Starts the collective and returns at once; `done` is called exactly once,
  // perhaps before this returns. `attributes` and `context` must live until
  // then, as the kernel and its context do.
  static void Start(const CollectiveAttributes& attributes,
                    TF_OpKernelContext* context, std::function<void()> done);

 private:
  struct Slot {
    ScopedTensor input;   // empty where the output took over its buffer
    ScopedTensor output;  // empty until the size is known
    std::vector<int64_t> dims;
    TF_DataType dtype;
  };

  PendingCall(const CollectiveAttributes& attributes,
              TF_OpKernelContext* context, std::function<void()> done);

  // Reads input i and prepares output i; describes both in *tensor.
  void Bind(int i, tfr_tensor* tensor, TF_Status* status);
  void BindOutput(int i, Slot* slot, TF_Status* status);
  tfr_request Describe(const std::vector<tfr_tensor>& tensors);
  // Reads alltoall's last input and makes room for what `counts` will hold.
  void BindSplits(TF_Status* status);
  size_t GivenSplits() const;  // 0: equal parts
  // Outputs that the engine's `counts` give.
  void SetCounts(TF_Status* status);
  void Fail(int code, const char* text);
  // Ends the op and deletes this.
  void Finish(int code, const char* text);

  static void* Allocate(void* user, int32_t tensor, int64_t rows);
  static void Done(void* user, const tfr_error* error);

  const CollectiveAttributes& attributes_;
  TF_OpKernelContext* const context_;
  std::function<void()> done_;
  std::vector<Slot> slots_;
  ScopedTensor splits_;  // alltoall only
  std::vector<int64_t> counts_;
};

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_PENDING_CALL_H_
