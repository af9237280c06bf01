// Reduction kernels for x86-64 with AVX2 and F16C; the build compiles this
// file alone with those instruction sets. Without them it is empty.
#if defined(__AVX2__) && defined(__F16C__)

#include "custom_ops/core/collectives/reduce_table.h"
#include "custom_ops/core/common/half_f16c.h"
#include "custom_ops/core/tfring.h"

#define TFR_KERNELS reduce_avx2
#define TFR_KERNEL_NAME "avx2"
#define TFR_HALF half_f16c
#define TFR_VECTOR_BYTES 32
#define TFR_HALF_VECTORS 1
#include "custom_ops/core/collectives/reduce_kernels.inc"

namespace tfring {
const ReduceTable& Avx2ReduceTable() { return reduce_avx2::kTable; }
}  // namespace tfring

#endif
