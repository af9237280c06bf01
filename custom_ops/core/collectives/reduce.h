// Elementwise reduction of several sources into one output.
//
//   out[i] = finish( s0[i]*prescale  op  s1[i]*prescale  op ... )
//   finish(x) = x / divisor * postscale, rounded once to the element type
//
// Sources are taken in the order given, so that the same sources give the same
// bits whatever the block size. 16-bit floats accumulate in float32, integers
// in wider ones; an integer average truncates towards zero and an integer sum
// wraps like the type itself.
//
// `out` may be one of the sources (same index), never overlap one otherwise.
#ifndef TFRING_CORE_COLLECTIVES_REDUCE_H_
#define TFRING_CORE_COLLECTIVES_REDUCE_H_

#include <cstddef>
#include <cstdint>

namespace tfring {

struct ReduceSpec {
  int32_t dtype;
  int32_t op;        // tfr_reduce_op
  double prescale;   // every source times this; 1 = untouched
  double postscale;  // the result times this; 1 = untouched
  int64_t divisor;   // number of ranks for Average, else 1
  // Of the sources: float16 or bfloat16 under a wider float; 0 = `dtype`.
  // Accumulates in float32. For Reduce only.
  int32_t source_dtype = 0;
};

// Bytes of one accumulator: what ReducePartial writes per element.
size_t AccumulatorSize(int32_t dtype);

void Reduce(const ReduceSpec& spec, const void* const* sources,
            int source_count, void* out, size_t count);

// The same in two halves, for partial results that travel between hosts.
void ReducePartial(const ReduceSpec& spec, const void* const* sources,
                   int source_count, void* accumulators, size_t count);
void ReduceFinal(const ReduceSpec& spec, const void* const* accumulators,
                 int source_count, void* out, size_t count);

// ... and partial results into one more of their kind.
void ReduceMerge(const ReduceSpec& spec, const void* const* accumulators,
                 int source_count, void* out, size_t count);

// Writes float32 or float64 (`dtype`) as float16 or bfloat16 (`narrow`): times
// `factor` in `dtype`, then rounded once. `out` may be `values`.
void Narrow(int32_t dtype, int32_t narrow, double factor, const void* values,
            void* out, size_t count);

// Which kernels this processor runs: "generic" or "avx2".
const char* ReduceKernelName();

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_REDUCE_H_
