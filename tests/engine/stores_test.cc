// What an allreduce gives does not depend on how ranks store what others read
// (store_choice.h): the same bits, also where only some of them stream.
#include <cstdint>
#include <vector>

#include "custom_ops/core/collectives/allreduce.h"
#include "planes.h"
#include "values.h"

namespace tfring_test {
namespace {

using tfring::DataPlane;
using tfring::GroupMembers;

constexpr uint64_t kChunkBytes = 128 * 1024;
// Several chunks, the last one not full.
constexpr size_t kCount = 150001;

struct Sum {
  int32_t dtype;
  int32_t wire_dtype;
  bool in_place;
  int copy_threads;
};

// One rank's allreduce of two tensors, the first one short; gives the outputs.
Bytes Reduce(const Sum& sum, const GroupMembers& members, DataPlane* plane) {
  const auto seed = static_cast<uint32_t>(members.rank);
  Bytes input = RandomValues(sum.dtype, 3 + kCount, seed);
  Bytes output(sum.in_place ? 0 : input.size());
  char* const out = sum.in_place ? input.data() : output.data();
  const size_t element = tfring::DtypeSize(sum.dtype);
  const int64_t counts[] = {3, kCount};
  std::vector<tfr_tensor> tensors(2);
  uint64_t at = 0;
  for (size_t t = 0; t < 2; ++t) {
    tensors[t] = {input.data() + at, out + at, &counts[t], 1, sum.dtype};
    at += static_cast<uint64_t>(counts[t]) * element;
  }
  tfr_request request = {};
  request.name = "t";
  request.kind = TFR_ALLREDUCE;
  request.reduce_op = TFR_AVERAGE;
  request.prescale = 1.0 / 3;
  request.postscale = 1.0;
  request.wire_dtype = sum.wire_dtype;
  request.tensor_count = 2;
  request.tensors = tensors.data();
  const auto operation = OperationOf(request, members);
  plane->Begin(0);
  EXPECT_OK(tfring::Allreduce(plane, *operation));
  return sum.in_place ? input : output;
}

// The outputs of `size` ranks, of which the first `streaming` stream.
std::vector<Bytes> ReduceAll(const Sum& sum, int size, int streaming,
                             int64_t direct_bytes) {
  tfring::MemoryOptions options;
  options.chunk_bytes = kChunkBytes;
  options.depth = 3;
  options.direct_bytes = direct_bytes;
  options.copy_threads = sum.copy_threads;
  std::vector<Bytes> outputs(static_cast<size_t>(size));
  RunOnPlanes(size, streaming, options,
              [&](const GroupMembers& members, DataPlane* plane) {
                outputs[static_cast<size_t>(members.rank)] =
                    Reduce(sum, members, plane);
              });
  return outputs;
}

constexpr Sum kSums[] = {
    {TFR_FLOAT32, 0, true, 1},
    {TFR_FLOAT32, 0, false, 2},
    {TFR_FLOAT64, TFR_BFLOAT16, true, 1},
    {TFR_FLOAT32, TFR_FLOAT16, false, 1},
    {TFR_BFLOAT16, 0, true, 1},
    {TFR_INT8, 0, true, 1},
};

TEST(StreamingChangesNoBit) {
  for (const Sum& sum : kSums) {
    for (const int size : {2, 3}) {
      for (const int64_t direct_bytes : {int64_t{0}, INT64_MAX}) {
        const auto plain = ReduceAll(sum, size, 0, direct_bytes);
        for (const int streaming : {1, size}) {
          CASE(sum.dtype, " by ", sum.wire_dtype, ", ", streaming, " of ", size,
               direct_bytes == 0 ? " shared" : " direct");
          const auto outputs = ReduceAll(sum, size, streaming, direct_bytes);
          for (const Bytes& one : outputs) EXPECT_TRUE(one == plain.front());
        }
      }
    }
  }
}

}  // namespace
}  // namespace tfring_test
