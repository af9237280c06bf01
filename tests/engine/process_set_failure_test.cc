// Process sets when something goes wrong: who is told what, and who goes on.
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "custom_ops/core/common/clock.h"
#include "processes.h"
#include "sets.h"

namespace tfring_test {
namespace {

TEST(ErrorsNameRanksOfTheJob) {
  ForEachJob({4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t set = Added(world, {1, 3});
      if (rank % 2 == 1) {
        std::vector<float> data(4, 1.0f);
        Call call;
        call.process_set = set;
        call.tensors = {{{rank}, TFR_FLOAT32, data.data(), data.data()}};
        tfr_error error = {};
        EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
        EXPECT_CONTAINS(std::string(error.text),
                        "rank 1 sent allreduce of float32 (1,)");
        EXPECT_CONTAINS(std::string(error.text),
                        "rank 3 sent allreduce of float32 (3,)");
        ExpectSum(world, set, rank, 6.0f);
      }
      Barrier(world);
    });
  });
}

TEST(StallsOfASetNameTheRankThatIsMissing) {
  ForEachJob({4}, [](JobOptions options) {
    options.fail_after_s = 1;
    std::atomic<int> ended{0};
    Meeting ready(4);
    Meeting added(4);
    RunJob(options, [&](int rank, tfr_world* world) {
      ready.Pass();
      const int64_t set = Added(world, {1, 2, 3});
      added.Pass();
      if (rank == 1 || rank == 2) {
        float value = 1.0f;
        tfr_error error = {};
        EXPECT_EQ(Sum(world, set, &value, &error), TFR_UNAVAILABLE);
        EXPECT_CONTAINS(std::string(error.text), "waits for rank 3");
        ++ended;
      }
      while (ended < 2) std::this_thread::yield();
    });
  });
}

TEST(AnAddThatARankDoesNotCallNamesIt) {
  ForEachJob({3}, [](JobOptions options) {
    options.fail_after_s = 1;
    std::atomic<int> ended{0};
    Meeting ready(3);
    RunJob(options, [&](int rank, tfr_world* world) {
      ready.Pass();
      if (rank != 1) {
        int64_t id = 0;
        tfr_error error = {};
        EXPECT_EQ(Add(world, {0, 1}, &id, &error), TFR_UNAVAILABLE);
        EXPECT_CONTAINS(std::string(error.text), "add_process_set");
        EXPECT_CONTAINS(std::string(error.text), "waits for rank 1");
        ++ended;
      }
      while (ended < 2) std::this_thread::yield();
    });
  });
}

TEST(ARankThatLeavesEndsItsOwnSetsOnly) {
  ForEachJob({4}, [](const JobOptions& options) {
    Gate left;
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t others = Added(world, {0, 1, 2});
      const int64_t mine = Added(world, {1, 3});
      Barrier(world);
      if (rank == 3) return;
      tfr_error error = {};
      float value = 1.0f;
      if (rank == 1) {
        EXPECT_EQ(Sum(world, mine, &value, &error), TFR_UNAVAILABLE);
        EXPECT_CONTAINS(std::string(error.text), "rank 3");
        left.Open();
      }
      left.Pass();
      for (int i = 0; i < 20; ++i) ExpectSum(world, others, rank, 6.0f);
      EXPECT_EQ(Sum(world, 0, &value, &error), TFR_UNAVAILABLE);
    });
  });
}

TEST(SetsOfOneHostGoOnWithoutRankZero) {
  JobOptions options;
  options.size = 3;
  RunJob(options, [&](int rank, tfr_world* world) {
    const int64_t set = Added(world, {1, 2});
    Barrier(world);
    if (rank == 0) return;
    float value = 1.0f;
    tfr_error error = {};
    EXPECT_EQ(Sum(world, 0, &value, &error), TFR_UNAVAILABLE);
    EXPECT_CONTAINS(std::string(error.text), "rank 0");
    for (int i = 0; i < 20; ++i) ExpectSum(world, set, rank, 5.0f);
  });
}

TEST(SetsOfSeveralHostsEndWithRankZero) {
  for (const bool shared : {false, true}) {
    CASE(shared ? "hosts" : "tcp only");
    JobOptions options;
    options.size = 3;
    options.hosts = {"a", "b", "c"};
    options.shared_memory = shared;
    Meeting heard(2);  // else the first to hear of it is the next to leave
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t set = Added(world, {1, 2});
      if (rank > 0) ExpectSum(world, set, rank, 5.0f);
      Barrier(world);
      if (rank == 0) return;
      float value = 1.0f;
      tfr_error error = {};
      while (Sum(world, set, &value, &error) == TFR_OK) {
      }
      EXPECT_EQ(error.code, TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "rank 0");
      heard.Pass();
    });
  }
}

TEST(AnAbortEndsAllSets) {
  ForEachJob({3}, [](const JobOptions& options) {
    Meeting added(3);
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t first = Added(world, {1, 2});
      const int64_t second = Added(world, {0, 2});
      added.Pass();
      if (rank == 0) return tfr_world_abort(world, "ValueError: boom7");
      float value = 1.0f;
      tfr_error error = {};
      EXPECT_EQ(Sum(world, rank == 1 ? first : second, &value, &error),
                TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "boom7");
    });
  });
}

// --- a member dies ----------------------------------------------------------

// Rank 1 is killed inside the set's collective; ranks 2 and 3 are in it, rank 0
// waits in one of the world.
ROLE(member) {
  JobOptions options;
  options.size = 4;
  options.fail_after_s = 30;
  if (argument == "hosts") options.hosts = {"a", "b", "a", "b"};
  options.faults = "rank=1 set=1 collective=1 chunk=1 do=kill";
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
  int64_t set = 0;
  if (Add(world, {1, 2, 3}, &set) != TFR_OK) return 11;
  std::vector<float> data(size_t{4} << 20, 1.0f);
  Call call;
  call.process_set = rank == 0 ? 0 : set;
  call.tensors = {{{int64_t{4} << 20}, TFR_FLOAT32, data.data(), data.data()}};
  tfr_error error = {};
  if (rank > 0 && call.Run(world, &error) != TFR_OK) return 12;
  const int64_t begin = tfring::NowNs();
  const int code = call.Run(world, &error);
  const int64_t heard = tfring::NowNs();
  tfr_world_shutdown(world);
  if (code != TFR_UNAVAILABLE) return 13;
  if (std::strstr(error.text, "rank 1") == nullptr) return 14;
  // Long before the limit, also on a busy machine.
  return heard - begin < int64_t{15} * 1000000000 ? 0 : 15;
}

TEST(AMemberThatDiesEndsTheWorldForAll) {
  for (const char* layout : {"one host", "hosts"}) {
    CASE(layout);
    const std::vector<int> statuses = RunProcesses(4, "member", layout);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(WEXITSTATUS(statuses[0]), 0);
    EXPECT_EQ(WEXITSTATUS(statuses[2]), 0);
    EXPECT_EQ(WEXITSTATUS(statuses[3]), 0);
  }
}

// --- a member cannot ---------------------------------------------------------

// Rank 1 has no descriptor to spare at first.
// (UBSan needs a pipe to look at a vtable. Without one it says that objects of
// this rank have an "invalid vptr"; that is no failure of the test.)
ROLE(starved) {
  JobOptions options;
  options.size = 3;
  options.fail_after_s = 15;
  options.start_timeout_s = 5;  // to connect
  if (argument == "hosts") options.hosts = {"a", "b", "a"};
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  for (const rlim_t spare : {0, 1, 2}) {
    if (rank == 1) {
      const int next = dup(0);  // the lowest that is free
      close(next);
      const rlimit tight = {static_cast<rlim_t>(next) + spare, before.rlim_max};
      setrlimit(RLIMIT_NOFILE, &tight);
    }
    int64_t set = 0;
    tfr_error error = {};
    const int code = Add(world, {0, 1}, &set, &error);
    setrlimit(RLIMIT_NOFILE, &before);
    if (code == TFR_OK && spare < 1) return 11;
    if (code != TFR_OK && code != TFR_RESOURCE_EXHAUSTED) return 12;
    if (code != TFR_OK && std::strstr(error.text, "rank 1") == nullptr) {
      return 13;
    }
    if (code == TFR_OK && tfr_process_set_remove(world, set, nullptr) != 0) {
      return 14;
    }
  }
  int64_t set = 0;
  if (Add(world, {0, 1}, &set) != TFR_OK) return 15;
  float value = static_cast<float>(rank + 1);
  if (rank < 2 && Sum(world, set, &value) != TFR_OK) return 16;
  if (rank < 2 && value != 3.0f) return 17;
  tfr_world_shutdown(world);
  return 0;
}

TEST(AMemberThatCannotIsNamedAndTheNextSetWorks) {
  for (const char* layout : {"one host", "hosts"}) {
    CASE(layout);
    for (const int status : RunProcesses(3, "starved", layout)) {
      EXPECT_EQ(status, 0);
    }
  }
}

}  // namespace
}  // namespace tfring_test
