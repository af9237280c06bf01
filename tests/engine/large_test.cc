// Sizes beyond 2^31 are carried exactly. Rows of no bytes need no memory.
#include <memory>
#include <string>

#include "custom_ops/core/collectives/partition.h"
#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/schedule/operation.h"
#include "custom_ops/core/transport/message_header.h"
#include "layouts.h"
#include "values.h"

namespace tfring_test {
namespace {

using tfring::MessageHeader;
using tfring::Operation;
using tfring::Partition;
using tfring::Range;
using tfring::Stream;

constexpr int64_t kLarge = (int64_t{1} << 31) + 1;

TEST(HeaderCarriesAllBits) {
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{kLarge}, uint64_t{1} << 32, UINT64_MAX}) {
    const MessageHeader header = {7, bytes};
    EXPECT_TRUE(MessageHeader::Decode(header.Encode()) == header);
  }
  const MessageHeader::Encoded encoded =
      MessageHeader{uint64_t{1} << 40, uint64_t{kLarge}}.Encode();
  const std::string want("\0\0\0\0\0\1\0\0\1\0\0\x80\0\0\0\0", 16);
  EXPECT_TRUE(std::string(encoded.data(), encoded.size()) == want);
}

tfring::GroupMembers TwoRanks() {
  tfring::GroupMembers members;
  members.size = 2;
  members.ranks = {0, 1};
  members.on_host = {{0, 1}};
  members.host_of = {0, 0};
  members.local_of = {0, 1};
  members.host_names = {"a"};
  return members;
}

std::unique_ptr<Operation> OperationOf(const Call& call) {
  std::unique_ptr<Operation> operation;
  call.With([&](const tfr_request& request) {
    EXPECT_TRUE(Operation::Create(request, TwoRanks(), &operation).ok());
    return 0;
  });
  return operation;
}

TEST(OperationsKeepLargeDimensions) {
  char place = 0;
  Call large;
  large.tensors = {{{kLarge, 0}, TFR_FLOAT32, nullptr, &place}};
  Call small = large;
  small.tensors[0].dims = {1, 0};
  for (const int32_t kind : {TFR_ALLREDUCE, TFR_ALLGATHER, TFR_BROADCAST,
                             TFR_REDUCESCATTER, TFR_ALLTOALL}) {
    CASE("kind ", kind);
    large.kind = kind;
    small.kind = kind;
    large.splits = {kLarge, 0};
    small.splits = {1, 0};
    const auto operation = OperationOf(large);
    EXPECT_EQ(operation->fault, std::string());
    EXPECT_EQ(operation->Rows(operation->tensors[0]), kLarge);
    EXPECT_CONTAINS(operation->Describe(), "(2147483649, 0)");
    const bool rows_may_differ = kind == TFR_ALLGATHER || kind == TFR_ALLTOALL;
    EXPECT_EQ(operation->Digest() == OperationOf(small)->Digest(),
              rows_may_differ);
    if (kind == TFR_ALLTOALL) EXPECT_EQ(operation->splits[0], kLarge);
  }
}

TEST(OperationsCountLargeTensors) {
  char place = 0;
  Call call;
  call.tensors = {{{kLarge, 3}, TFR_FLOAT64, &place, &place}};
  const auto operation = OperationOf(call);
  EXPECT_EQ(operation->tensors[0].count, uint64_t{kLarge} * 3);
  EXPECT_EQ(operation->tensors[0].bytes, uint64_t{kLarge} * 24);
  EXPECT_EQ(operation->InputBytes(), uint64_t{kLarge} * 24);
  call.tensors[0].dims = {kLarge, kLarge, kLarge};
  EXPECT_CONTAINS(OperationOf(call)->fault, "too large");
}

TEST(StreamsReachBeyond32Bits) {
  Stream stream;
  stream.Add(uint64_t{kLarge});
  stream.Add(uint64_t{kLarge} * 8);
  EXPECT_EQ(stream.size(), tfring::AlignStream(uint64_t{kLarge}) +
                               tfring::AlignStream(uint64_t{kLarge} * 8));
  const uint64_t begin = uint64_t{1} << 33;
  int pieces = 0;
  stream.ForRange(begin, begin + 64,
                  [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                    ++pieces;
                    EXPECT_EQ(t, 1u);
                    EXPECT_EQ(offset,
                              begin - tfring::AlignStream(uint64_t{kLarge}));
                    EXPECT_EQ(bytes, 64u);
                    EXPECT_EQ(at, begin);
                  });
  EXPECT_EQ(pieces, 1);
}

TEST(PartitionsCoverEveryByteOnce) {
  for (const uint64_t chunk : {64u, 128u, 320u, 4096u}) {
    for (const uint64_t parts : {1u, 2u, 3u, 7u, 100u}) {
      CASE("chunk ", chunk, " parts ", parts);
      const Partition partition(chunk, parts);
      for (const uint64_t bytes : {0u, 1u, 64u, 65u, 5000u}) {
        const uint64_t steps = partition.StepsFor(bytes);
        for (uint64_t part = 0; part < parts; ++part) {
          uint64_t covered = 0;
          for (uint64_t step = 0; step < steps; ++step) {
            const Range range = partition.RangeOf(part, step, bytes);
            if (range.empty()) continue;
            ASSERT_EQ(range.begin, covered);
            covered = range.end;
            ASSERT_TRUE(partition.PlaceOf(part) + range.end - range.begin <=
                        chunk);
          }
          ASSERT_EQ(covered, bytes);
        }
      }
    }
  }
}

TEST(PartitionsReachBeyond32Bits) {
  const Partition partition(1 << 20, 4);
  const uint64_t bytes = uint64_t{kLarge} * 4;
  const uint64_t steps = partition.StepsFor(bytes);
  EXPECT_EQ(steps, (uint64_t{1} << 15) + 1);
  const Range last = partition.RangeOf(3, steps - 1, bytes);
  EXPECT_EQ(last.begin, uint64_t{1} << 33);
  EXPECT_EQ(last.end, bytes);
}

TEST(AllCollectivesTakeLargeDimensions) {
  ForEachJob({1, 2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t size = options.size;
      Outputs outputs;
      outputs.row_bytes = {0};
      char place = 0;
      Call call;
      call.tensors = {{{kLarge, 0}, TFR_FLOAT32, nullptr, &place}};
      call.user = &outputs;
      call.allocate = &Outputs::Allocate;
      EXPECT_EQ(call.Run(world), TFR_OK);
      call.kind = TFR_BROADCAST;
      EXPECT_EQ(call.Run(world), TFR_OK);
      call.tensors[0].output = nullptr;
      call.kind = TFR_ALLGATHER;
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(outputs.rows[0], size * kLarge);
      call.kind = TFR_REDUCESCATTER;
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(outputs.rows[0],
                kLarge / size + (rank < kLarge % size ? 1 : 0));
      std::vector<int64_t> counts(static_cast<size_t>(size));
      call.kind = TFR_ALLTOALL;
      call.tensors[0].dims = {size * kLarge, 0};
      call.counts = counts.data();
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(outputs.rows[0], size * kLarge);
      for (const int64_t count : counts) EXPECT_EQ(count, kLarge);
    });
  });
}

TEST(LargeDimensionsAreComparedExactly) {
  RunJob({}, [](int rank, tfr_world* world) {
    char place = 0;
    Call call;
    call.tensors = {
        {{rank == 0 ? kLarge : 1, 0}, TFR_FLOAT32, nullptr, &place}};
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
    EXPECT_CONTAINS(std::string(error.text), "(2147483649, 0)");
  });
}

TEST(ATensorIsCutIntoSeveralLargeChunks) {
  ForEachJob({2}, [](JobOptions options) {
    options.chunk_bytes = uint64_t{1} << 20;
    RunJob(options, [&](int rank, tfr_world* world) {
      constexpr int32_t kCount = 3 * (1 << 18) + 7;
      std::vector<int32_t> data(kCount);
      for (int32_t i = 0; i < kCount; ++i) {
        data[static_cast<size_t>(i)] = i * (rank + 1);
      }
      Call call;
      call.tensors = {{{kCount}, TFR_INT32, data.data(), data.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      for (int32_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(data[static_cast<size_t>(i)], i * 3);
      }
    });
  });
}

}  // namespace
}  // namespace tfring_test
