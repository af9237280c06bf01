// Owners for the handles that TensorFlow's C API gives out.
#ifndef TFRING_TENSORFLOW_SCOPED_H_
#define TFRING_TENSORFLOW_SCOPED_H_

#include <memory>

#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

namespace tfring {

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
struct ShapeDeleter {
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};

using ScopedStatus = std::unique_ptr<TF_Status, StatusDeleter>;
using ScopedTensor = std::unique_ptr<TF_Tensor, TensorDeleter>;
using ScopedShape = std::unique_ptr<TF_ShapeHandle, ShapeDeleter>;

inline ScopedStatus NewStatus() { return ScopedStatus(TF_NewStatus()); }
inline bool Ok(const ScopedStatus& status) {
  return TF_GetCode(status.get()) == TF_OK;
}

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_SCOPED_H_
