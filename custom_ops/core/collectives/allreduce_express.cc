#include "custom_ops/core/collectives/allreduce_express.h"

#include <array>
#include <cstring>

#include "custom_ops/core/collectives/reduce.h"
#include "custom_ops/core/collectives/reduction.h"
#include "custom_ops/core/transport/local_group.h"

namespace tfring {
namespace {

// Each tensor begins where any element may.
uint64_t Padded(const OperationTensor& tensor) {
  return (tensor.staged_bytes() + 7) / 8 * 8;
}

}  // namespace

bool FitsExpress(const Operation& operation, uint64_t most) {
  if (operation.kind != TFR_ALLREDUCE || operation.reduce_op == TFR_ADASUM ||
      operation.run || !operation.fault.empty()) {
    return false;
  }
  uint64_t bytes = 0;
  for (const OperationTensor& tensor : operation.tensors) {
    if (tensor.bytes > most * sizeof(uint64_t)) return false;  // no overflow
    bytes += Padded(tensor);
    if (bytes > most) return false;
  }
  return true;
}

void StageExpress(const Operation& operation, char* staged) {
  for (const OperationTensor& tensor : operation.tensors) {
    if (tensor.is_narrowed()) {
      Narrow(tensor.dtype, tensor.staged_dtype, operation.prescale,
             tensor.input, staged, tensor.count);
    } else if (tensor.bytes > 0) {
      std::memcpy(staged, tensor.input, tensor.bytes);
    }
    staged += Padded(tensor);
  }
}

void ReduceExpress(const Operation& operation, const char* const* staged,
                   int ranks) {
  std::array<const void*, kMaxLocalRanks> sources;
  const auto count = static_cast<size_t>(ranks);
  uint64_t at = 0;
  for (const OperationTensor& tensor : operation.tensors) {
    for (size_t r = 0; r < count; ++r) sources[r] = staged[r] + at;
    if (tensor.count > 0) {
      Reduce(Reduction::SpecOf(operation, tensor, ranks), sources.data(), ranks,
             tensor.output, tensor.count);
    }
    at += Padded(tensor);
  }
}

}  // namespace tfring
