// Collectives of a whole job, in every layout of hosts.
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>

#include "layouts.h"

namespace tfring_test {
namespace {

float Value(int rank, size_t i) {
  return static_cast<float>(static_cast<int>(i % 1000) - 500 + 7 * rank);
}

TEST(AllreduceSumsExactly) {
  ForEachJob({1, 2, 3, 4, 7}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{10},
                                  int64_t{1001}, int64_t{300007}}) {
        for (const bool in_place : {false, true}) {
          CASE("count ", count, in_place ? " in place" : "");
          const auto n = static_cast<size_t>(count);
          std::vector<float> input(n);
          std::vector<float> output(n);
          for (size_t i = 0; i < n; ++i) input[i] = Value(rank, i);
          Call call;
          call.tensors = {{{count},
                           TFR_FLOAT32,
                           input.data(),
                           in_place ? input.data() : output.data()}};
          ASSERT_EQ(call.Run(world), TFR_OK);
          const std::vector<float>& got = in_place ? input : output;
          for (size_t i = 0; i < n; ++i) {
            float want = 0;
            for (int r = 0; r < options.size; ++r) want += Value(r, i);
            ASSERT_EQ(got[i], want);
          }
        }
      }
    });
  });
}

TEST(AllgatherConcatenatesUnevenRows) {
  ForEachJob({1, 2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t rows = rank * 1000;
      std::vector<int32_t> input(static_cast<size_t>(rows * 3), rank);
      std::vector<int32_t> output;
      Call call;
      call.kind = TFR_ALLGATHER;
      call.tensors = {{{rows, 3}, TFR_INT32, input.data(), nullptr}};
      call.user = &output;
      call.allocate = [](void* user, int32_t, int64_t all) -> void* {
        auto* out = static_cast<std::vector<int32_t>*>(user);
        out->resize(static_cast<size_t>(all * 3) + 1);
        return out->data();
      };
      ASSERT_EQ(call.Run(world), TFR_OK);
      size_t at = 0;
      for (int r = 0; r < options.size; ++r) {
        for (int i = 0; i < r * 3000; ++i) ASSERT_EQ(output[at++], r);
      }
      EXPECT_EQ(at + 1, output.size());
    });
  });
}

TEST(AllgatherOfTooManyRowsIsAnErrorOnAllRanks) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      char nothing = 0;
      Call call;
      call.kind = TFR_ALLGATHER;
      call.tensors = {{{int64_t{1} << 62, 0}, TFR_FLOAT32, nullptr, &nothing}};
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
      EXPECT_CONTAINS(std::string(error.text), "rows");
      float value = static_cast<float>(rank);
      Call next;
      next.tensors = {{{}, TFR_FLOAT32, &value, &value}};
      EXPECT_EQ(next.Run(world), TFR_OK);
    });
  });
}

TEST(BroadcastCopiesTheRootsTensors) {
  ForEachJob({1, 2, 3, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      for (int root = 0; root < options.size; ++root) {
        std::vector<double> big(100003, rank + 0.5);
        uint8_t small = static_cast<uint8_t>(rank + 1);
        Call call;
        call.kind = TFR_BROADCAST;
        call.root = root;
        call.tensors = {{{100003}, TFR_FLOAT64, big.data(), big.data()},
                        {{}, TFR_UINT8, &small, &small}};
        ASSERT_EQ(call.Run(world), TFR_OK);
        EXPECT_EQ(big.front(), root + 0.5);
        EXPECT_EQ(big.back(), root + 0.5);
        EXPECT_EQ(small, root + 1);
      }
    });
  });
}

TEST(MixedDtypesTravelInOneGroup) {
  ForEachJob({2, 3, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      float f[3] = {1.5f, 2.5f, -1.0f};
      int8_t i8[5] = {100, 1, 2, 3, static_cast<int8_t>(rank)};
      int64_t i64 = int64_t{1} << 40;
      uint16_t half = 0x7753;  // 30000 in float16
      Call call;
      call.reduce_op = TFR_AVERAGE;
      call.tensors = {{{3}, TFR_FLOAT32, f, f},
                      {{5}, TFR_INT8, i8, i8},
                      {{0}, TFR_FLOAT32, nullptr, nullptr},
                      {{}, TFR_INT64, &i64, &i64},
                      {{1}, TFR_FLOAT16, &half, &half}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(f[1], 2.5f);
      EXPECT_EQ(i8[0], 100);
      EXPECT_EQ(i8[4], (options.size - 1) / 2);
      EXPECT_EQ(i64, int64_t{1} << 40);
      EXPECT_EQ(half, 0x7753);
    });
  });
}

TEST(ChunkSizeDoesNotChangeTheBits) {
  std::vector<float> first;
  for (const uint64_t chunk : {64u, 4096u, 262144u}) {
    CASE("chunk ", chunk);
    JobOptions options;
    options.size = 3;
    options.chunk_bytes = chunk;
    std::vector<float> result(1000);
    RunJob(options, [&](int rank, tfr_world* world) {
      std::vector<float> data(1000);
      for (size_t i = 0; i < data.size(); ++i) {
        data[i] = rank == 0 ? 1e8f : rank == 1 ? 1.0f + 0.001f * i : -1e8f;
      }
      Call call;
      call.tensors = {{{1000}, TFR_FLOAT32, data.data(), data.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      if (rank == 1) result = data;
    });
    if (first.empty()) first = result;
    EXPECT_TRUE(std::memcmp(first.data(), result.data(), 4000) == 0);
  }
}

TEST(BFloat16AccumulatesInFloat32) {
  ForEachJob({4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      uint16_t value = rank == 0 ? 0x3f80 : 0x3b00;  // 1 and 2^-9
      Call call;
      call.tensors = {{{}, TFR_BFLOAT16, &value, &value}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(value, 0x3f81);  // 1.0078125
    });
  });
}

TEST(MismatchNamesWhoSentWhatAndLeavesTheEngineUsable) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      std::vector<float> data(4, 1.0f);
      Call call;
      call.name = "g";
      call.tensors = {
          {{rank == 0 ? 3 : 4}, TFR_FLOAT32, data.data(), data.data()}};
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
      EXPECT_CONTAINS(std::string(error.text), "rank 0 sent");
      EXPECT_CONTAINS(std::string(error.text), "(3,)");
      EXPECT_CONTAINS(std::string(error.text), "(4,)");
      float value = static_cast<float>(rank + 1);
      Call next;
      next.tensors = {{{}, TFR_FLOAT32, &value, &value}};
      ASSERT_EQ(next.Run(world), TFR_OK);
      EXPECT_EQ(value, options.size * (options.size + 1) / 2.0f);
    });
  });
}

// Counts down as operations finish.
struct Latch {
  std::mutex mutex;
  std::condition_variable changed;
  int left;
  std::vector<std::string> errors;

  explicit Latch(int count) : left(count) {}
  static void Done(void* user, const tfr_error* error) {
    auto* latch = static_cast<Latch*>(user);
    std::lock_guard<std::mutex> lock(latch->mutex);
    if (error->code != TFR_OK) latch->errors.push_back(error->text);
    --latch->left;
    latch->changed.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return left == 0; });
  }
};

TEST(RanksSubmitInAnyOrder) {
  ForEachJob({2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      constexpr int kOps = 200;
      std::vector<float> data(kOps);
      Latch latch(kOps);
      for (int i = 0; i < kOps; ++i) {
        const int op = rank % 2 == 0 ? i : kOps - 1 - i;
        float* value = &data[static_cast<size_t>(op)];
        *value = static_cast<float>(op);
        Call call;
        call.name = "op" + std::to_string(op);
        call.tensors = {{{}, TFR_FLOAT32, value, value}};
        call.done = &Latch::Done;
        call.user = &latch;
        ASSERT_EQ(call.Submit(world), TFR_OK);
      }
      latch.Wait();
      EXPECT_EQ(latch.errors.size(), 0u);
      for (int op = 0; op < kOps; ++op) {
        EXPECT_EQ(data[static_cast<size_t>(op)],
                  static_cast<float>(op * options.size));
      }
    });
  });
}

TEST(ManyThreadsRunAtOnce) {
  JobOptions options;
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([=] {
        for (int i = 0; i < 200; ++i) {
          float value = static_cast<float>(rank + t);
          Call call;
          call.name = "thread" + std::to_string(t);
          call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
          ASSERT_EQ(call.Run(world), TFR_OK);
          ASSERT_EQ(value, static_cast<float>(2 * t + 1));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(StallNamesTheTensorAndTheMissingRank) {
  ForEachJob({2, 3, 4}, [](JobOptions options) {
    options.fail_after_s = 1;
    std::atomic<int> waiting{options.size - 1};
    Meeting ready(options.size);
    RunJob(options, [&](int rank, tfr_world* world) {
      ready.Pass();
      float value = 1;
      Call call;
      call.name = "g";
      call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
      if (rank == 1) {
        while (waiting > 0) std::this_thread::yield();
        return;
      }
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "'g'");
      EXPECT_CONTAINS(std::string(error.text), "rank 1");
      --waiting;
    });
  });
}

TEST(LeavingFailsThoseWhoStillWait) {
  ForEachJob({2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      float value = 1;
      Call call;
      call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      if (rank == 1) return;
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "rank 1");
    });
  });
}

TEST(AbortReachesAllRanksWithItsText) {
  ForEachJob({2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      if (rank == 1) {
        tfr_world_abort(world, "ValueError: boom7");
        return;
      }
      float value = 1;
      Call call;
      call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text),
                      "rank 1 failed: ValueError: boom7");
    });
  });
}

TEST(SteadyStateSendsNoControlMessagesOnOneHost) {
  RunJob({}, [&](int, tfr_world* world) {
    std::vector<std::vector<float>> data(100, std::vector<float>(10, 1.0f));
    Call call;
    for (auto& d : data)
      call.tensors.push_back({{10}, TFR_FLOAT32, d.data(), d.data()});
    for (int step = 0; step < 50; ++step) ASSERT_EQ(call.Run(world), TFR_OK);
    tfr_stats stats = {};
    tfr_world_stats(world, &stats);
    EXPECT_EQ(stats.control_messages, 0u);
    EXPECT_EQ(stats.collectives, 50u);
    EXPECT_EQ(stats.tensors, 5000u);
  });
}

TEST(AHostSendsOneControlMessageForACollective) {
  JobOptions options;
  options.size = 4;
  options.hosts = {"a", "a", "b", "b"};
  std::array<uint64_t, 4> sent = {};
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<std::vector<float>> data(100, std::vector<float>(10, 1.0f));
    Call call;
    for (auto& d : data)
      call.tensors.push_back({{10}, TFR_FLOAT32, d.data(), d.data()});
    for (int step = 0; step < 50; ++step) ASSERT_EQ(call.Run(world), TFR_OK);
    tfr_stats stats = {};
    tfr_world_stats(world, &stats);
    sent[static_cast<size_t>(rank)] = stats.control_messages;
  });
  // Whichever rank of a host is the last tells rank 0, which answers the other
  // host; what rank 0 says to itself is no message.
  EXPECT_EQ(sent[2] + sent[3], 50u);
  EXPECT_EQ(sent[0], 50u);
  EXPECT_TRUE(sent[1] <= 50);
}

TEST(BadRequestsAreRefusedHere) {
  RunJob({}, [&](int rank, tfr_world* world) {
    float value = static_cast<float>(rank);
    bool flag = true;
    const auto refused = [&](const Call& call, const char* text) {
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
      EXPECT_CONTAINS(std::string(error.text), text);
    };
    Call call;
    call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
    Call bad = call;
    bad.name = "";
    refused(bad, "name");
    bad = call;
    bad.reduce_op = 6;
    refused(bad, "op");
    bad = call;
    bad.tensors[0].dtype = 7;
    refused(bad, "dtype");
    bad = call;
    bad.tensors[0].dims = {-1};
    refused(bad, "dimension");
    bad = call;
    bad.kind = TFR_ALLGATHER;
    refused(bad, "scalar");
    bad = call;
    bad.kind = TFR_BROADCAST;
    bad.root = 2;
    refused(bad, "root_rank=2");
    bad = call;
    bad.tensors = {{{}, TFR_BOOL, &flag, &flag}};
    refused(bad, "bool");
    bad = call;
    bad.tensors[0].output = nullptr;
    refused(bad, "output");
    bad = call;
    bad.tensors[0].input = nullptr;
    refused(bad, "input");
    bad = call;
    bad.kind = TFR_ALLGATHER;
    bad.tensors = {{{1}, TFR_FLOAT32, &value, nullptr}};
    refused(bad, "allocate");
    ASSERT_EQ(call.Run(world), TFR_OK);
    EXPECT_EQ(value, 1.0f);
  });
}

// The error of a world's creation, of one rank's config among others'.
std::string CreateError(const JobOptions& options,
                        const std::function<tfr_config(tfr_config)>& change) {
  tfr_store_server* server = nullptr;
  int32_t port = 0;
  EXPECT_EQ(tfr_store_serve("127.0.0.1", 0, "secret of the test", &server,
                            &port, nullptr),
            TFR_OK);
  const std::string store = "127.0.0.1:" + std::to_string(port);
  std::string text;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      tfr_config config = ConfigOf(options, rank, store);
      if (rank == 1) {
        // Second for sure: the first has told the store who it is.
        tfr_store_client* client = nullptr;
        tfr_bytes value = {};
        tfr_store_connect(store.c_str(), config.secret, 5, &client, nullptr);
        tfr_store_get(client, "test/claim/0", 5, &value, nullptr);
        tfr_bytes_free(&value);
        tfr_store_client_close(client);
        config.start_timeout_s = 20;  // it is told at once
        config = change(config);
      }
      tfr_world* world = nullptr;
      tfr_error error = {};
      tfr_world_create(&config, &world, &error);
      if (rank == 1) text = error.text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  tfr_store_server_close(server);
  return text;
}

TEST(RanksToldDifferentThingsAreToldSo) {
  JobOptions options;
  options.start_timeout_s = 1;
  EXPECT_CONTAINS(CreateError(options,
                              [](tfr_config config) {
                                config.size = 3;
                                return config;
                              }),
                  "has 3 ranks, another rank 2");
  EXPECT_CONTAINS(CreateError(options,
                              [](tfr_config config) {
                                config.rank = 0;
                                return config;
                              }),
                  "two processes of this job were told to be rank 0");
}

TEST(IdentityFollowsTheHosts) {
  JobOptions options;
  options.size = 4;
  options.hosts = {"a", "b", "a", "b"};
  RunJob(options, [&](int rank, tfr_world* world) {
    tfr_info info = {};
    tfr_world_info(world, &info);
    EXPECT_EQ(info.local_rank, rank / 2);
    EXPECT_EQ(info.local_size, 2);
    EXPECT_EQ(info.cross_rank, rank % 2);
    EXPECT_EQ(info.cross_size, 2);
    EXPECT_EQ(info.homogeneous, 1);
  });
}

}  // namespace
}  // namespace tfring_test
