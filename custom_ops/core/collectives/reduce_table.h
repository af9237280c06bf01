// The kernels of reduce.h, compiled once per instruction set and chosen when
// the library first reduces.
#ifndef TFRING_CORE_COLLECTIVES_REDUCE_TABLE_H_
#define TFRING_CORE_COLLECTIVES_REDUCE_TABLE_H_

#include "custom_ops/core/collectives/reduce.h"

namespace tfring {

struct ReduceTable {
  using Kernel = void (*)(const ReduceSpec& spec, const void* const* sources,
                          int source_count, void* out, size_t count);
  const char* name;
  Kernel reduce;
  Kernel partial;
  Kernel final;
  Kernel merge;
  void (*narrow)(int32_t dtype, int32_t narrow, double factor,
                 const void* values, void* out, size_t count);
};

const ReduceTable& GenericReduceTable();
// Only defined where the build holds AVX2 kernels (x86-64).
const ReduceTable& Avx2ReduceTable();

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_REDUCE_TABLE_H_
