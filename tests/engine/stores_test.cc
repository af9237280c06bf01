// What an allreduce gives does not depend on how ranks store what others read
// (store_choice.h): the same bits, also where only some of them stream.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "custom_ops/core/collectives/allreduce.h"
#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/rendezvous/group_memory.h"
#include "custom_ops/core/rendezvous/identity.h"
#include "values.h"

namespace tfring_test {
namespace {

using tfring::DataPlane;
using tfring::GroupMembers;
using tfring::LocalGroup;
using tfring::Operation;
using tfring::StoreChoice;
using tfring::Stores;

constexpr uint64_t kChunkBytes = 128 * 1024;
// Several chunks, the last one not full.
constexpr size_t kCount = 150001;

struct Sum {
  int32_t dtype;
  int32_t wire_dtype;
  bool in_place;
  int copy_threads;
};

// Until the plane streams, plain stores seem to take long.
void MakeItStream(DataPlane* plane) {
  while (plane->StoresForOthers() == Stores::kPlain) {
    plane->StoreForOthers(StoreChoice::kLeastBytes, [](Stores stores) {
      if (stores == Stores::kPlain) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
}

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
  std::unique_ptr<Operation> operation;
  EXPECT_OK(Operation::Create(request, members, &operation));
  EXPECT_EQ(operation->fault, std::string());
  plane->Begin(0);
  EXPECT_OK(tfring::Allreduce(plane, *operation));
  return sum.in_place ? input : output;
}

// The outputs of `size` ranks, of which the first `streaming` stream.
std::vector<Bytes> ReduceAll(const Sum& sum, int size, int streaming,
                             int64_t direct_bytes) {
  const std::vector<std::string> hosts(static_cast<size_t>(size), "here");
  tfring::MemoryOptions options;
  options.chunk_bytes = kChunkBytes;
  options.depth = 3;
  options.direct_bytes = direct_bytes;
  options.copy_threads = sum.copy_threads;
  options.crowded = true;
  std::vector<std::unique_ptr<LocalGroup>> locals(hosts.size());
  tfring::MemoryPlace place;
  std::vector<GroupMembers> members;
  for (int rank = 0; rank < size; ++rank) {
    members.push_back(tfring::MembersOf(rank, hosts, hosts));
    auto* const local = &locals[static_cast<size_t>(rank)];
    EXPECT_OK(rank == 0
                  ? CreateGroupMemory(members[0], options, local, &place)
                  : OpenGroupMemory(members.back(), options, place, local));
  }
  std::vector<Bytes> outputs(hosts.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < hosts.size(); ++r) {
    threads.emplace_back([&, r] {
      tfring::Failure failure;
      tfring::Faults faults;
      DataPlane plane(&members[r], locals[r].get(), nullptr, &failure, &faults,
                      0, 20);
      if (static_cast<int>(r) < streaming) MakeItStream(&plane);
      outputs[r] = Reduce(sum, members[r], &plane);
    });
  }
  for (std::thread& thread : threads) thread.join();
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
