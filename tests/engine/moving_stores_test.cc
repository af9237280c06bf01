// Collectives that move bytes, and reducescatter, bring the right ones however
// their ranks store what others read (store_choice.h), and wherever in its
// place a small one begins.
#include <cstdint>
#include <cstring>
#include <vector>

#include "custom_ops/core/collectives/alltoall.h"
#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/collectives/reducescatter.h"
#include "planes.h"
#include "values.h"

namespace tfring_test {
namespace {

using tfring::DataPlane;
using tfring::GroupMembers;

constexpr uint64_t kChunkBytes = 256 * 1024;
constexpr uint64_t kDepth = 3;
// Several chunks; one that takes turns through a place.
constexpr int64_t kCounts[] = {150001, 10007};

int32_t ValueOf(int rank, int64_t at) {
  return static_cast<int32_t>(at) * 5 + rank * 1000003;
}

std::vector<int32_t> InputOf(int rank, int64_t count) {
  std::vector<int32_t> input;
  for (int64_t i = 0; i < count; ++i) input.push_back(ValueOf(rank, i));
  return input;
}

// Row numbers that rank `rank` of `size` has of `count` split evenly.
struct Rows {
  int64_t begin;
  int64_t end;
};
Rows RowsOf(int rank, int size, int64_t count) {
  const auto first = [&](int64_t r) {
    return count / size * r + std::min<int64_t>(r, count % size);
  };
  return {first(rank), first(rank + 1)};
}

std::vector<int32_t> Expected(int32_t kind, int rank, int size, int64_t count) {
  std::vector<int32_t> want;
  const Rows mine = RowsOf(rank, size, count);
  switch (kind) {
    case TFR_BROADCAST:
      return InputOf(size - 1, count);
    case TFR_REDUCESCATTER:
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        uint32_t sum = 0;
        for (int r = 0; r < size; ++r) {
          sum += static_cast<uint32_t>(ValueOf(r, i));
        }
        want.push_back(static_cast<int32_t>(sum));
      }
      return want;
    default:
      for (int r = 0; r < size; ++r) {
        const Rows rows = kind == TFR_ALLTOALL ? mine : Rows{0, count};
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          want.push_back(ValueOf(r, i));
        }
      }
      return want;
  }
}

tfring::Status RunKind(DataPlane* plane, const tfring::Operation& operation) {
  switch (operation.kind) {
    case TFR_BROADCAST:
      return Broadcast(plane, operation);
    case TFR_REDUCESCATTER:
      return Reducescatter(plane, operation);
    case TFR_ALLTOALL:
      return Alltoall(plane, operation);
    default:
      return Allgather(plane, operation);
  }
}

void RunAndCheck(int32_t kind, int64_t count, const GroupMembers& members,
                 DataPlane* plane) {
  std::vector<int32_t> data = InputOf(members.rank, count);
  std::vector<int64_t> splits;
  for (int r = 0; r < members.size; ++r) {
    const Rows rows = RowsOf(r, members.size, count);
    splits.push_back(rows.end - rows.begin);
  }
  Outputs outputs;
  outputs.row_bytes = {sizeof(int32_t)};
  const bool in_place = kind == TFR_BROADCAST;
  const tfr_tensor tensor = {data.data(), in_place ? data.data() : nullptr,
                             &count, 1, TFR_INT32};
  tfr_request request = {};
  request.name = "t";
  request.kind = kind;
  request.reduce_op = TFR_SUM;
  request.root = members.size - 1;
  request.prescale = 1.0;
  request.postscale = 1.0;
  request.tensor_count = 1;
  request.tensors = &tensor;
  request.splits = kind == TFR_ALLTOALL ? splits.data() : nullptr;
  request.allocate = &Outputs::Allocate;
  request.user = &outputs;
  const auto operation = OperationOf(request, members);
  EXPECT_OK(RunKind(plane, *operation));
  const std::vector<int32_t> want =
      Expected(kind, members.rank, members.size, count);
  const Bytes bytes(reinterpret_cast<const char*>(want.data()),
                    reinterpret_cast<const char*>(want.data() + want.size()));
  if (in_place) {
    EXPECT_TRUE(data == want);
  } else {
    EXPECT_TRUE(outputs.data.at(0) == bytes);
  }
}

TEST(BringsTheRightBytesHoweverTheyAreStored) {
  tfring::MemoryOptions options;
  options.chunk_bytes = kChunkBytes;
  options.depth = kDepth;
  options.copy_threads = 1;
  for (const int size : {2, 3}) {
    for (const int streaming : {0, 1, size}) {
      CASE(streaming, " of ", size, " stream");
      RunOnPlanes(
          size, streaming, options,
          [](const GroupMembers& members, DataPlane* plane) {
            // As often as it takes to come round all turns.
            for (int round = 0; round < 9; ++round) {
              for (const int32_t kind : {TFR_ALLGATHER, TFR_BROADCAST,
                                         TFR_REDUCESCATTER, TFR_ALLTOALL}) {
                for (const int64_t count : kCounts) {
                  CASE("kind ", kind, ", ", count, " in round ", round);
                  plane->Begin(0);
                  RunAndCheck(kind, count, members, plane);
                }
              }
            }
          });
    }
  }
}

}  // namespace
}  // namespace tfring_test
