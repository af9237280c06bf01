// Reduction kernels for any processor.
#include "custom_ops/core/collectives/reduce_table.h"
#include "custom_ops/core/common/half_scalar.h"
#include "custom_ops/core/tfring.h"

#define TFR_KERNELS reduce_generic
#define TFR_KERNEL_NAME "generic"
#define TFR_HALF half_scalar
#define TFR_VECTOR_BYTES 16
#define TFR_HALF_VECTORS 0
#include "custom_ops/core/collectives/reduce_kernels.inc"

namespace tfring {
const ReduceTable& GenericReduceTable() { return reduce_generic::kTable; }
}  // namespace tfring
