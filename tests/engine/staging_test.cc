// How a host's ranks divide their work never shows in a result: chunk sizes,
// depths, copy threads, and who reduces what.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/common/copy.h"
#include "custom_ops/core/common/copy_pool.h"
#include "custom_ops/core/rendezvous/group_memory.h"
#include "custom_ops/core/rendezvous/identity.h"
#include "job.h"
#include "resources.h"
#include "values.h"

namespace tfring_test {
namespace {

constexpr int32_t kOps[] = {TFR_SUM, TFR_AVERAGE, TFR_MIN, TFR_MAX,
                            TFR_PRODUCT};
// Not a multiple of anything; two tensors, so that cuts fall everywhere.
constexpr size_t kCounts[] = {20011, 3};

struct Variant {
  const char* name;
  uint64_t chunk_bytes;
  int depth;
  int64_t direct_bytes;
  int copy_threads;
};

constexpr Variant kVariants[] = {
    {"chosen", 0, 0, -1, 0},
    {"direct", 0, 0, 1 << 30, 1},
    {"direct, small chunks", 1000, 3, 1 << 30, 1},
    {"shared", 0, 0, 0, 1},
    {"shared, one chunk under way", 8192, 1, 0, 1},
    {"shared, odd chunks", 4160, 5, 0, 1},
    {"direct, 3 threads", 150000, 2, 1 << 30, 3},
    {"shared, 2 threads", 200000, 2, 0, 2},
};

void Append(int rank, tfr_world* world, int32_t dtype, int32_t op, int32_t wire,
            Bytes* all) {
  Call call;
  call.reduce_op = op;
  call.wire_dtype = wire;
  std::vector<Bytes> data;
  for (const size_t count : kCounts) {
    data.push_back(
        RandomValues(dtype, count, static_cast<uint32_t>(rank * 1000 + dtype)));
  }
  for (size_t t = 0; t < data.size(); ++t) {
    call.tensors.push_back({{static_cast<int64_t>(kCounts[t])},
                            dtype,
                            data[t].data(),
                            data[t].data()});
  }
  EXPECT_EQ(call.Run(world), TFR_OK);
  for (const Bytes& one : data) all->insert(all->end(), one.begin(), one.end());
}

// All dtypes and operations, one after the other; floats also in 16 bits.
Bytes Results(int rank, tfr_world* world) {
  Bytes all;
  for (const int32_t op : kOps) {
    for (const int32_t dtype : kDtypes) {
      if (dtype == TFR_BOOL && (op == TFR_SUM || op == TFR_AVERAGE)) continue;
      Append(rank, world, dtype, op, 0, &all);
    }
    Append(rank, world, TFR_FLOAT32, op, TFR_BFLOAT16, &all);
    Append(rank, world, TFR_FLOAT64, op, TFR_FLOAT16, &all);
  }
  return all;
}

void HasTheSameBitsInAllVariants(int size) {
  Bytes first;
  for (const Variant& variant : kVariants) {
    CASE(size, " ranks, ", variant.name);
    JobOptions options;
    options.size = size;
    options.chunk_bytes = variant.chunk_bytes;
    options.depth = variant.depth;
    options.direct_bytes = variant.direct_bytes;
    options.copy_threads = variant.copy_threads;
    std::vector<Bytes> results(static_cast<size_t>(size));
    RunJob(options, [&](int rank, tfr_world* world) {
      results[static_cast<size_t>(rank)] = Results(rank, world);
    });
    if (first.empty()) first = results[0];
    for (const Bytes& result : results) EXPECT_TRUE(result == first);
  }
}

TEST(TwoRanksGetTheSameBits) { HasTheSameBitsInAllVariants(2); }
TEST(ThreeRanksGetTheSameBits) { HasTheSameBitsInAllVariants(3); }
TEST(FourRanksGetTheSameBits) { HasTheSameBitsInAllVariants(4); }
TEST(SevenRanksGetTheSameBits) { HasTheSameBitsInAllVariants(7); }

TEST(CopyThreadsEndWithTheirWorld) {
  const Resources before;
  for (int cycle = 0; cycle < 3; ++cycle) {
    JobOptions options;
    options.copy_threads = 3;
    RunJob(options, [](int, tfr_world* world) {
      std::vector<float> data(1 << 20, 1.0f);
      Call call;
      call.tensors = {{{1 << 20}, TFR_FLOAT32, data.data(), data.data()}};
      EXPECT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(data.back(), 2.0f);
    });
  }
  EXPECT_TRUE(ComesDownTo(before));
}

// Bytes of the engine's memory that this process has mapped.
uint64_t MappedStaging() {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:tfring") == std::string::npos) continue;
    char* behind = nullptr;
    const uint64_t begin = std::strtoull(line.c_str(), &behind, 16);
    bytes += std::strtoull(behind + 1, nullptr, 16) - begin;
  }
  return bytes;
}

TEST(NoStagingIsLeftAfterShutdown) {
  std::atomic<int> mapped{0};
  RunJob(JobOptions(), [&mapped](int, tfr_world* world) {
    float value = 1;
    Call call;
    call.tensors = {{{1}, TFR_FLOAT32, &value, &value}};
    EXPECT_EQ(call.Run(world), TFR_OK);
    if (MappedStaging() > 0) ++mapped;
  });
  EXPECT_EQ(mapped.load(), 2);
  EXPECT_EQ(MappedStaging(), 0u);
}

// Mapped bytes of a rank's host, one of `hosts` of 8 ranks with 8 leaders each.
uint64_t MappedAmong(int hosts) {
  constexpr int kRanks = 8;
  std::vector<std::string> names;
  for (int rank = 0; rank < hosts * kRanks; ++rank) {
    names.push_back("host " + std::to_string(rank / kRanks));
  }
  tfring::GroupMembers members = tfring::MembersOf(0, names, names);
  members.most_leaders = kRanks;
  std::unique_ptr<tfring::LocalGroup> local;
  tfring::MemoryPlace place;
  EXPECT_OK(CreateGroupMemory(members, {}, &local, &place));
  return local->memory().size();
}

TEST(StagingStaysBoundedAmongManyHosts) {
  constexpr uint64_t kMib = 1024 * 1024;
  EXPECT_TRUE(MappedAmong(2) < 256 * kMib);
  EXPECT_TRUE(MappedAmong(64) < 256 * kMib);
  EXPECT_TRUE(MappedAmong(512) < 1024 * kMib);
}

TEST(ThreadsOfAPoolDoEachPartOnce) {
  tfring::CopyPool pool(4);
  std::vector<int> done(4);
  for (int pass = 1; pass <= 1000; ++pass) {
    pool.Run([&](int part) { ++done[static_cast<size_t>(part)]; });
    for (const int times : done) ASSERT_EQ(times, pass);
  }
}

TEST(CopiesEveryLengthAndOffset) {
  const Bytes from = RandomValues(TFR_UINT8, 9000, 1);
  for (const size_t bytes : {0, 1, 63, 2047, 2048, 2049, 4096, 8192}) {
    for (const size_t from_at : {0, 1, 16, 63}) {
      for (const size_t to_at : {0, 1, 16, 63}) {
        Bytes to(9000, 'x');
        Bytes want = to;
        std::memcpy(want.data() + to_at, from.data() + from_at, bytes);
        tfring::CopyBytes(to.data() + to_at, from.data() + from_at, bytes);
        ASSERT_TRUE(to == want);
      }
    }
  }
}

}  // namespace
}  // namespace tfring_test
