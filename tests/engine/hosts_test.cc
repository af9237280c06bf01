// Reductions between hosts: every algorithm on every number of hosts, the bytes
// that travel, and the bits that come out.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/collectives/host_algorithm.h"
#include "custom_ops/core/transport/message_header.h"
#include "job.h"
#include "values.h"

namespace tfring_test {
namespace {

using tfring::HostAlgorithm;

struct Way {
  int32_t setting;
  HostAlgorithm algorithm;
};
constexpr Way kWays[] = {
    {TFR_HOSTS_DIRECT, HostAlgorithm::kDirect},
    {TFR_HOSTS_HALVING_DOUBLING, HostAlgorithm::kHalvingDoubling},
    {TFR_HOSTS_RING, HostAlgorithm::kRing}};

// `ranks` on each of `hosts` hosts.
JobOptions HostsOf(int hosts, int ranks, const Way& way) {
  JobOptions options;
  options.size = hosts * ranks;
  options.host_algorithm = way.setting;
  options.host_leaders = ranks;
  for (int r = 0; r < options.size; ++r) {
    options.hosts.push_back("h" + std::to_string(r / ranks));
  }
  return options;
}

template <typename F>
void ForEachWay(const std::vector<int>& hosts, F&& f) {
  for (const Way& way : kWays) {
    for (const int count : hosts) {
      CASE(tfring::HostAlgorithmName(way.algorithm), ", ", count, " hosts");
      f(way, count);
    }
  }
}

uint64_t SentBy(tfr_world* world) {
  tfr_stats stats = {};
  tfr_world_stats(world, &stats);
  return stats.wire_bytes_sent;
}

uint64_t MessagesOf(const Way& way, int hosts) {
  uint64_t messages = 0;
  for (const tfring::HostStep& step :
       tfring::PlanAllreduce(way.algorithm, 0, hosts)) {
    messages += step.sends.size();
  }
  return messages;
}

// What travels, and how many bytes of it for each of the elements' bytes.
struct Load {
  const char* name;
  int32_t dtype;
  int32_t op;
  int32_t wire_dtype;
  double alone;   // of partial sums, sent straight by hosts with one rank
  double merged;  // ... by hosts that have added up
  double spread;  // of results
};
constexpr Load kLoads[] = {
    {"float32", TFR_FLOAT32, TFR_SUM, 0, 1, 1, 1},
    {"float32 in 16 bits", TFR_FLOAT32, TFR_SUM, TFR_BFLOAT16, 0.5, 0.5, 0.5},
    {"bfloat16", TFR_BFLOAT16, TFR_SUM, 0, 1, 2, 1},
    {"float16 averaged", TFR_FLOAT16, TFR_AVERAGE, 0, 1, 2, 1},
    {"float16 in 16 bits", TFR_FLOAT16, TFR_SUM, TFR_FLOAT16, 1, 1, 1},
    {"largest float16", TFR_FLOAT16, TFR_MAX, 0, 1, 1, 1},
    {"int8", TFR_INT8, TFR_SUM, 0, 1, 1, 1},
    {"int32", TFR_INT32, TFR_PRODUCT, 0, 1, 1, 1},
    {"int64", TFR_INT64, TFR_SUM, 0, 1, 1, 1},
    {"int32 averaged", TFR_INT32, TFR_AVERAGE, 0, 1, 2, 1},
};
const Load& kFloats = kLoads[0];

// What the ranks of one host send together: (H-1)/H of the partial sums and of
// the results, a header per message.
void CheckBytes(const Load& load, const JobOptions& job, const Way& way,
                int ranks) {
  constexpr uint64_t kPart = 96 * 1024;  // of each host, as staged
  constexpr uint64_t kChunk = 64 * 1024;
  JobOptions options = job;
  options.chunk_bytes = kChunk;
  const int hosts = options.size / ranks;
  const auto of_hosts = static_cast<uint64_t>(hosts);
  const double staged = load.wire_dtype == TFR_BFLOAT16 ? 0.5 : 1;
  const bool straight = ranks == 1 && way.algorithm == HostAlgorithm::kDirect;
  const double reduce = (straight ? load.alone : load.merged) / staged;
  const uint64_t slice = kChunk / of_hosts / 64 * 64;
  const uint64_t chunks = (kPart + slice - 1) / slice;
  const auto payload =
      static_cast<uint64_t>((reduce + load.spread / staged) * kPart);
  const uint64_t expected =
      (of_hosts - 1) * payload +
      tfring::MessageHeader::kSize * chunks * MessagesOf(way, hosts);
  std::vector<std::atomic<uint64_t>> sent(of_hosts);
  std::atomic<int> senders{0};
  RunJob(options, [&](int rank, tfr_world* world) {
    const size_t size = tfring::DtypeSize(load.dtype);
    const auto bytes =
        static_cast<uint64_t>(static_cast<double>(of_hosts * kPart) / staged);
    Bytes data(bytes, 0);
    Call call;
    call.reduce_op = load.op;
    call.wire_dtype = load.wire_dtype;
    call.tensors = {{{static_cast<int64_t>(bytes / size)},
                     load.dtype,
                     data.data(),
                     data.data()}};
    const uint64_t before = SentBy(world);
    ASSERT_EQ(call.Run(world), TFR_OK);
    const uint64_t own = SentBy(world) - before;
    if (own > 0) ++senders;
    sent[static_cast<size_t>(rank / ranks)] += own;
  });
  for (const auto& one : sent) EXPECT_EQ(one.load(), expected);
  const int leaders = options.host_leaders;
  EXPECT_EQ(senders.load(), hosts * leaders);
}

TEST(HostsSendTheLeastThatIsPossible) {
  ForEachWay({2, 3, 4}, [](const Way& way, int hosts) {
    CheckBytes(kFloats, HostsOf(hosts, 1, way), way, 1);
  });
}

TEST(BytesBetweenHostsDoNotGrowWithTheirRanks) {
  ForEachWay({2, 3}, [](const Way& way, int hosts) {
    CheckBytes(kFloats, HostsOf(hosts, 2, way), way, 2);
  });
}

TEST(ElementsTravelAsTheyAreWhereThatLosesNothing) {
  for (const Load& load : kLoads) {
    for (const Way& way : {kWays[0], kWays[2]}) {
      for (const int ranks : {1, 2}) {
        CASE(load.name, ", ", tfring::HostAlgorithmName(way.algorithm), ", ",
             ranks, " ranks a host");
        CheckBytes(load, HostsOf(2, ranks, way), way, ranks);
      }
    }
  }
}

TEST(LeadersShareWhatAHostSends) {
  for (const int leaders : {1, 3}) {
    CASE(leaders, " leaders");
    JobOptions options = HostsOf(2, 3, kWays[0]);
    options.host_leaders = leaders;
    CheckBytes(kFloats, options, kWays[0], 3);
  }
}

TEST(LeadersAreAsManyAsTheSmallestHostHas) {
  struct Group {
    std::vector<int32_t> ranks;
    int senders;
  };
  // Of ranks 0 to 2 on one host and 3 and 4 on another.
  const Group groups[] = {
      {{0, 1, 2, 3, 4}, 4}, {{0, 2, 3, 4}, 4}, {{0, 1, 2, 4}, 2}};
  ForEachWay({2}, [&](const Way& way, int) {
    JobOptions options = HostsOf(2, 3, way);
    options.hosts.pop_back();
    options.size = 5;
    options.chunk_bytes = 1024;
    std::atomic<int> senders[3] = {};
    RunJob(options, [&](int rank, tfr_world* world) {
      for (size_t g = 0; g < 3; ++g) {
        const std::vector<int32_t>& ranks = groups[g].ranks;
        Call call;
        tfr_error error = {};
        if (ranks.size() < 5) {
          const auto count = static_cast<int32_t>(ranks.size());
          ASSERT_EQ(tfr_process_set_add(world, ranks.data(), count,
                                        &call.process_set, &error),
                    TFR_OK);
        }
        if (std::count(ranks.begin(), ranks.end(), rank) == 0) continue;
        std::vector<float> data(5000, static_cast<float>(rank + 1));
        call.tensors = {{{5000}, TFR_FLOAT32, data.data(), data.data()}};
        const uint64_t before = SentBy(world);
        ASSERT_EQ(call.Run(world), TFR_OK);
        if (SentBy(world) > before) ++senders[g];
        const auto sum = static_cast<float>(
            std::accumulate(ranks.begin(), ranks.end(), ranks.size()));
        EXPECT_EQ(std::count(data.begin(), data.end(), sum), 5000);
      }
    });
    for (size_t g = 0; g < 3; ++g) {
      EXPECT_EQ(senders[g].load(), groups[g].senders);
    }
  });
}

// Sums of all kinds of elements, whose order of addition does not matter.
TEST(EveryAlgorithmAddsEveryDtype) {
  ForEachWay({3, 4, 5}, [](const Way& way, int hosts) {
    JobOptions options = HostsOf(hosts, 1, way);
    options.hosts.push_back(options.hosts.front());  // two ranks on the first
    ++options.size;
    options.chunk_bytes = 1024;
    RunJob(options, [&](int rank, tfr_world* world) {
      std::vector<float> f(1000, static_cast<float>(rank));
      std::vector<double> d(37, 0.25 * rank);
      std::vector<int8_t> small(500, static_cast<int8_t>(rank));
      std::vector<int64_t> wide(65, int64_t{rank} << 33);
      std::vector<uint16_t> half(99, 0x3c00);  // 1 in float16
      Call call;
      call.tensors = {{{1000}, TFR_FLOAT32, f.data(), f.data()},
                      {{37}, TFR_FLOAT64, d.data(), d.data()},
                      {{500}, TFR_INT8, small.data(), small.data()},
                      {{65}, TFR_INT64, wide.data(), wide.data()},
                      {{99}, TFR_FLOAT16, half.data(), half.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      const int sum = options.size * (options.size - 1) / 2;
      for (const float one : f) ASSERT_EQ(one, static_cast<float>(sum));
      for (const double one : d) ASSERT_EQ(one, 0.25 * sum);
      for (const int8_t one : small) ASSERT_EQ(one, static_cast<int8_t>(sum));
      for (const int64_t one : wide) ASSERT_EQ(one, int64_t{sum} << 33);
      const uint16_t count = options.size == 4   ? 0x4400
                             : options.size == 5 ? 0x4500
                                                 : 0x4600;
      for (const uint16_t one : half) ASSERT_EQ(one, count);
    });
  });
}

Bytes ReduceRandom(const JobOptions& options, int32_t op, double prescale) {
  constexpr size_t kCount = 5000;
  std::vector<Bytes> results(static_cast<size_t>(options.size));
  RunJob(options, [&](int rank, tfr_world* world) {
    const Bytes input =
        RandomValues(TFR_FLOAT32, kCount, static_cast<uint32_t>(rank));
    Bytes output(input.size());
    Call call;
    call.reduce_op = op;
    call.prescale = prescale;
    call.tensors = {{{kCount}, TFR_FLOAT32, input.data(), output.data()}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    results[static_cast<size_t>(rank)] = output;
  });
  for (const Bytes& one : results) EXPECT_TRUE(one == results.front());
  return results.front();
}

TEST(AllHostsGetTheSameBitsWhateverTheChunks) {
  ForEachWay({3, 5}, [](const Way& way, int hosts) {
    JobOptions options = HostsOf(hosts, 1, way);
    const Bytes whole = ReduceRandom(options, TFR_AVERAGE, 1.0);
    options.host_connections = 3;
    for (const uint64_t chunk : {64u, 2048u}) {
      CASE("chunk ", chunk);
      options.chunk_bytes = chunk;
      EXPECT_TRUE(ReduceRandom(options, TFR_AVERAGE, 1.0) == whole);
    }
  });
}

TEST(EveryLeaderUsesAllItsConnections) {
  for (uint64_t leaders = 1; leaders <= 4; ++leaders) {
    for (uint64_t lanes = 1; lanes <= 4; ++lanes) {
      CASE(leaders, " leaders, ", lanes, " connections each");
      std::set<uint64_t> used;
      for (uint64_t turn = 0; turn < lanes; ++turn) {
        const uint64_t chunk = 5 + turn * leaders;
        used.insert(tfring::DataPlane::StripeOf(chunk, leaders) % lanes);
      }
      EXPECT_EQ(used.size(), lanes);
    }
  }
}

TEST(LeadersChangeNoBit) {
  ForEachWay({3}, [](const Way& way, int hosts) {
    JobOptions options = HostsOf(hosts, 3, way);
    options.chunk_bytes = 1024;
    options.host_leaders = 1;
    const Bytes one = ReduceRandom(options, TFR_AVERAGE, 0.3);
    for (const int leaders : {2, 3}) {
      CASE(leaders, " leaders");
      options.host_leaders = leaders;
      EXPECT_TRUE(ReduceRandom(options, TFR_AVERAGE, 0.3) == one);
    }
  });
}

// 1 and three times 2^-9 in bfloat16, of which two make no difference to 1
// alone: 1.0078125 only if all are added before the sum is rounded.
TEST(SixteenBitsAreRoundedOnceBetweenHosts) {
  ForEachWay({2, 4}, [](const Way& way, int hosts) {
    RunJob(HostsOf(hosts, 4 / hosts, way), [](int rank, tfr_world* world) {
      const uint16_t value = rank == 0 ? 0x3f80 : 0x3b00;
      uint16_t sum = 0;
      Call call;
      call.tensors = {{{}, TFR_BFLOAT16, &value, &sum}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(sum, 0x3f81);
    });
  });
}

TEST(AveragesOfIntegersDoNotWrapBetweenHosts) {
  ForEachWay({2, 3}, [](const Way& way, int hosts) {
    for (const int ranks : {1, 2}) {
      RunJob(HostsOf(hosts, ranks, way), [](int, tfr_world* world) {
        const int8_t value = 100;
        int8_t average = 0;
        Call call;
        call.reduce_op = TFR_AVERAGE;
        call.tensors = {{{}, TFR_INT8, &value, &average}};
        ASSERT_EQ(call.Run(world), TFR_OK);
        EXPECT_EQ(average, 100);
      });
    }
  });
}

TEST(DirectAddsInHostOrder) {
  const JobOptions options = HostsOf(4, 1, kWays[0]);
  const Bytes got = ReduceRandom(options, TFR_SUM, 0.3);
  for (size_t i = 0; i < got.size() / 4; ++i) {
    float sum = 0;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      float value;
      std::memcpy(&value, &RandomValues(TFR_FLOAT32, i + 1, rank)[i * 4], 4);
      value *= 0.3f;
      sum = rank == 0 ? value : sum + value;
    }
    float result;
    std::memcpy(&result, &got[i * 4], 4);
    ASSERT_EQ(result, sum);
    if (i == 200) break;  // drawing all values again and again takes long
  }
}

TEST(MinAndMaxTakeEveryWay) {
  ForEachWay({3}, [](const Way& way, int hosts) {
    const JobOptions options = HostsOf(hosts, 2, way);
    const JobOptions direct = HostsOf(hosts, 2, kWays[0]);
    for (const int32_t op : {TFR_MIN, TFR_MAX}) {
      EXPECT_TRUE(ReduceRandom(options, op, 1.0) ==
                  ReduceRandom(direct, op, 1.0));
    }
  });
}

TEST(ReducescatterTakesEveryWay) {
  ForEachWay({2, 4}, [](const Way& way, int hosts) {
    const JobOptions options = HostsOf(hosts, 2, way);
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t rows = options.size * 7;
      const std::vector<float> data(static_cast<size_t>(rows * 300),
                                    static_cast<float>(rank));
      Outputs outputs;
      outputs.row_bytes = {1200};
      Call call;
      call.kind = TFR_REDUCESCATTER;
      call.allocate = &Outputs::Allocate;
      call.user = &outputs;
      call.tensors = {{{rows, 300}, TFR_FLOAT32, data.data(), nullptr}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(outputs.rows[0], 7);
      const auto sum =
          static_cast<float>(options.size * (options.size - 1) / 2);
      for (size_t i = 0; i < 7 * 300; ++i) {
        float value;
        std::memcpy(&value, &outputs.data[0][i * 4], 4);
        ASSERT_EQ(value, sum);
      }
    });
  });
}

uint64_t StagedBy(tfr_world* world) {
  tfr_stats stats = {};
  tfr_world_stats(world, &stats);
  return stats.staging_bytes;
}

TEST(ARankAloneOnItsHostStagesLittle) {
  JobOptions options;
  options.shared_memory = false;
  RunJob(options, [&](int, tfr_world* world) {
    std::vector<float> few(4, 1.0f);
    Call call;
    call.tensors = {{{4}, TFR_FLOAT32, few.data(), few.data()}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    EXPECT_TRUE(StagedBy(world) < 64 * 1024);
    std::vector<float> bucket(256 * 1024, 1.0f);
    for (int turn = 0; turn < 9; ++turn) {
      call.tensors = {
          {{256 * 1024}, TFR_FLOAT32, bucket.data(), bucket.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
    }
    EXPECT_TRUE(StagedBy(world) < 2 * 1024 * 1024);
    EXPECT_EQ(bucket.back(), 512.0f);
  });
}

void ExpectRefused(const JobOptions& options, const std::string& text) {
  const tfr_config config = ConfigOf(options, 0, "127.0.0.1:1");
  tfr_world* world = nullptr;
  tfr_error error = {};
  EXPECT_EQ(tfr_world_create(&config, &world, &error), TFR_INVALID_ARGUMENT);
  EXPECT_CONTAINS(std::string(error.text), text);
}

TEST(SettingsOutOfRangeAreRefused) {
  JobOptions options;
  options.host_connections = 65;
  ExpectRefused(options, "host_connections=65");
  options = {};
  options.host_leaders = 65;
  ExpectRefused(options, "host_leaders=65");
  options = {};
  options.depth = -1;
  ExpectRefused(options, "depth=-1");
  options = {};
  options.copy_threads = 65;
  ExpectRefused(options, "copy_threads=65");
}

}  // namespace
}  // namespace tfring_test
