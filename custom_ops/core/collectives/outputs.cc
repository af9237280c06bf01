#include "custom_ops/core/collectives/outputs.h"

#include <limits>

namespace tfring {

Status OutputOf(const Operation& operation, size_t index, uint64_t rows,
                char** output) {
  const OperationTensor& tensor = operation.tensors[index];
  *output = tensor.output;
  if (*output == nullptr) {
    *output = static_cast<char*>(
        operation.allocate(operation.user, static_cast<int32_t>(index),
                           static_cast<int64_t>(rows)));
  }
  if (*output != nullptr) return Status::Ok();
  return ResourceExhausted(StrCat("no memory for ", rows, " rows of ",
                                  operation.RowBytes(tensor),
                                  " bytes of output ", index));
}

Status AddRows(const Operation& operation, size_t index, uint64_t rows,
               uint64_t* sum) {
  constexpr auto kMost =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!__builtin_add_overflow(*sum, rows, sum) && *sum <= kMost) {
    return Status::Ok();
  }
  return FailedPrecondition(StrCat(operation.Title(), ": output ", index,
                                   " would have more rows than 64 bits can "
                                   "count"));
}

}  // namespace tfring
