#include "custom_ops/core/collectives/reduce.h"

#include "custom_ops/core/collectives/reduce_table.h"
#include "custom_ops/core/tfring.h"

namespace tfring {
namespace {

const ReduceTable& ChooseTable() {
#if defined(TFRING_HAVE_AVX2_KERNELS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return Avx2ReduceTable();
  }
#endif
  return GenericReduceTable();
}

const ReduceTable& Table() {
  static const ReduceTable& table = ChooseTable();
  return table;
}

}  // namespace

size_t AccumulatorSize(int32_t dtype) {
  switch (dtype) {
    case TFR_FLOAT16:
    case TFR_BFLOAT16:
    case TFR_FLOAT32:
      return 4;
    case TFR_INT64:
      return 16;
    default:
      return 8;
  }
}

void Reduce(const ReduceSpec& spec, const void* const* sources,
            int source_count, void* out, size_t count) {
  Table().reduce(spec, sources, source_count, out, count);
}

void ReducePartial(const ReduceSpec& spec, const void* const* sources,
                   int source_count, void* accumulators, size_t count) {
  Table().partial(spec, sources, source_count, accumulators, count);
}

void ReduceFinal(const ReduceSpec& spec, const void* const* accumulators,
                 int source_count, void* out, size_t count) {
  Table().final(spec, accumulators, source_count, out, count);
}

void ReduceMerge(const ReduceSpec& spec, const void* const* accumulators,
                 int source_count, void* out, size_t count) {
  Table().merge(spec, accumulators, source_count, out, count);
}

void Narrow(int32_t dtype, int32_t narrow, double factor, const void* values,
            void* out, size_t count) {
  Table().narrow(dtype, narrow, factor, values, out, count);
}

const char* ReduceKernelName() { return Table().name; }

}  // namespace tfring
