// How long ranks that have joined wait, and what ends it.
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "joins.h"
#include "layouts.h"
#include "processes.h"

namespace tfring_test {
namespace {

TEST(AWaitingJoinHasTimeWhileTheOthersWork) {
  for (const char* second : {"a", "b"}) {
    CASE("host of rank 1: ", second);
    JobOptions options;
    options.hosts = {"a", second};
    options.fail_after_s = 1.5;
    RunJob(options, [&](int rank, tfr_world* world) {
      for (int i = 0; rank == 1 && i < 10; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        float value = 1.0f;
        ASSERT_EQ(Reduce(world, TFR_SUM, &value), TFR_OK);
      }
      EXPECT_EQ(Join(world), 1);
    });
  }
}

TEST(AJoinThatWaitsForAnIdleRankNamesIt) {
  ForEachJob({3}, [](JobOptions options) {
    options.fail_after_s = 1;
    std::atomic<int> waiting{2};
    Meeting ready(3);
    RunJob(options, [&](int rank, tfr_world* world) {
      ready.Pass();
      if (rank == 1) {
        while (waiting > 0) std::this_thread::yield();
        return;
      }
      tfr_error error = {};
      EXPECT_EQ(Join(world, &error), -1);
      EXPECT_EQ(error.code, TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "join");
      EXPECT_CONTAINS(std::string(error.text), "waits for rank 1");
      --waiting;
    });
  });
}

TEST(AStalledAllreduceDoesNotNameJoinedRanks) {
  ForEachJob({4}, [](JobOptions options) {
    options.fail_after_s = 1;
    std::atomic<int> waiting{3};
    Meeting ready(4);
    RunJob(options, [&](int rank, tfr_world* world) {
      ready.Pass();
      tfr_error error = {};
      float value = 1.0f;
      if (rank == 0) {
        EXPECT_EQ(Join(world, &error), -1);
      } else if (rank == 1) {
        while (waiting > 0) std::this_thread::yield();
        return;
      } else {
        EXPECT_EQ(Reduce(world, TFR_SUM, &value, &error), TFR_UNAVAILABLE);
      }
      EXPECT_CONTAINS(std::string(error.text), "waits for rank 1");
      EXPECT_TRUE(std::strstr(error.text, "rank 0") == nullptr);
      --waiting;
    });
  });
}

TEST(LeavingEndsTheWaitOfThoseWhoHaveJoined) {
  ForEachJob({2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      float value = 1.0f;
      ASSERT_EQ(Reduce(world, TFR_SUM, &value), TFR_OK);
      if (rank == 1) return;
      tfr_error error = {};
      EXPECT_EQ(Join(world, &error), -1);
      EXPECT_EQ(error.code, TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "rank 1");
    });
  });
}

// Rank 0 has joined; rank 1 is killed in an allreduce with rank 2.
ROLE(joiner) {
  JobOptions options;
  options.size = 3;
  options.fail_after_s = 30;
  if (argument == "hosts") options.hosts = {"a", "b", "a"};
  options.faults = "rank=1 collective=1 chunk=1 do=kill";
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
  std::vector<float> data(size_t{4} << 20, 1.0f);
  Call call;
  call.tensors = {{{int64_t{4} << 20}, TFR_FLOAT32, data.data(), data.data()}};
  tfr_error error = {};
  if (call.Run(world, &error) != TFR_OK) return 11;
  const int64_t begin = tfring::NowNs();
  if (rank == 0) {
    Join(world, &error);
  } else {
    call.Run(world, &error);
  }
  const int64_t heard = tfring::NowNs();
  tfr_world_shutdown(world);
  if (error.code != TFR_UNAVAILABLE) return 12;
  if (std::strstr(error.text, "rank 1") == nullptr) return 13;
  // Long before the limit, also on a busy machine.
  return heard - begin < int64_t{15} * 1000000000 ? 0 : 14;
}

TEST(ADeathEndsTheWaitOfThoseWhoHaveJoined) {
  for (const char* layout : {"one host", "hosts"}) {
    CASE(layout);
    const std::vector<int> statuses = RunProcesses(3, "joiner", layout);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(WEXITSTATUS(statuses[0]), 0);
    EXPECT_EQ(WEXITSTATUS(statuses[2]), 0);
  }
}

}  // namespace
}  // namespace tfring_test
