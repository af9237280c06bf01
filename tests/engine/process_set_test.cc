// Groups of some ranks: how they come and go, and that they run for themselves.
#include <dirent.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "custom_ops/core/common/clock.h"
#include "layouts.h"
#include "processes.h"

namespace tfring_test {
namespace {

using Ranks = std::vector<int32_t>;

bool Holds(const Ranks& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

int Add(tfr_world* world, const Ranks& ranks, int32_t* id,
        tfr_error* error = nullptr) {
  return tfr_process_set_add(world, ranks.data(),
                             static_cast<int32_t>(ranks.size()), id, error);
}

// The id, or -1 where that failed.
int32_t Added(tfr_world* world, const Ranks& ranks) {
  tfr_error error = {};
  int32_t id = -1;
  EXPECT_EQ(Add(world, ranks, &id, &error), TFR_OK);
  EXPECT_EQ(std::string(error.text), "");
  return id;
}

int Sum(tfr_world* world, int32_t set, float* value,
        tfr_error* error = nullptr) {
  Call call;
  call.process_set = set;
  call.tensors = {{{}, TFR_FLOAT32, value, value}};
  return call.Run(world, error);
}

void ExpectSum(tfr_world* world, int32_t set, int rank, float want) {
  float value = static_cast<float>(rank + 1);
  tfr_error error = {};
  EXPECT_EQ(Sum(world, set, &value, &error), TFR_OK);
  EXPECT_EQ(std::string(error.text), "");
  EXPECT_EQ(value, want);
}

float SumOf(const Ranks& ranks) {
  float sum = 0;
  for (const int32_t rank : ranks) sum += static_cast<float>(rank + 1);
  return sum;
}

void Barrier(tfr_world* world) {
  Call call;
  call.name = "barrier";
  call.kind = TFR_BARRIER;
  ASSERT_EQ(call.Run(world), TFR_OK);
}

// Lets threads go on in an order.
class Gate {
 public:
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// An allreduce that has been handed over, and its end.
struct Pending {
  float value = 1.0f;
  Gate done;
  tfr_error error = {};

  explicit Pending(tfr_world* world, int32_t set, const char* name = "t") {
    Call call;
    call.name = name;
    call.process_set = set;
    call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
    call.user = this;
    call.done = [](void* user, const tfr_error* error) {
      auto* pending = static_cast<Pending*>(user);
      pending->error = *error;
      pending->done.Open();
    };
    EXPECT_EQ(call.Submit(world), TFR_OK);
  }
};

// Some sets of `size` ranks: single ones, without rank 0, overlapping.
std::vector<Ranks> SetsOf(int size) {
  std::vector<Ranks> sets = {{0}, {size - 1}};
  if (size < 3) return sets;
  Ranks rest;
  Ranks even;
  for (int32_t rank = 0; rank < size; ++rank) {
    if (rank > 0) rest.push_back(rank);
    if (rank % 2 == 0) even.push_back(rank);
  }
  sets.push_back(rest);
  if (even.size() < static_cast<size_t>(size)) sets.push_back(even);
  return sets;
}

TEST(MembersReduceAmongThemselves) {
  ForEachJob({2, 3, 4, 5}, [](const JobOptions& options) {
    const std::vector<Ranks> sets = SetsOf(options.size);
    RunJob(options, [&](int rank, tfr_world* world) {
      for (size_t s = 0; s < sets.size(); ++s) {
        const int32_t id = Added(world, sets[s]);
        EXPECT_EQ(id, static_cast<int32_t>(s + 1));
        int32_t size = 0;
        int32_t place = 0;
        EXPECT_EQ(tfr_process_set_info(world, id, &size, &place, nullptr),
                  TFR_OK);
        EXPECT_EQ(size, static_cast<int32_t>(sets[s].size()));
        EXPECT_EQ(place >= 0, Holds(sets[s], rank));
        if (place >= 0) EXPECT_EQ(sets[s][static_cast<size_t>(place)], rank);
      }
      for (size_t s = 0; s < sets.size(); ++s) {
        if (!Holds(sets[s], rank)) continue;
        for (int i = 0; i < 20; ++i) {
          ExpectSum(world, static_cast<int32_t>(s + 1), rank, SumOf(sets[s]));
        }
      }
      Ranks all;
      for (int32_t r = 0; r < options.size; ++r) all.push_back(r);
      ExpectSum(world, 0, rank, SumOf(all));
    });
  });
}

TEST(LargeTensorsPassThroughASet) {
  ForEachJob({4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {1, 2, 3});
      if (rank == 0) return Barrier(world);
      constexpr size_t kCount = 1000003;
      std::vector<float> data(kCount, static_cast<float>(rank));
      Call call;
      call.process_set = set;
      call.reduce_op = TFR_AVERAGE;
      call.tensors = {
          {{int64_t{kCount}}, TFR_FLOAT32, data.data(), data.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      for (const float value : data) ASSERT_EQ(value, 2.0f);
      Barrier(world);
    });
  });
}

TEST(TheRootIsARankOfTheJob) {
  ForEachJob({3, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {0, 2});
      if (rank % 2 == 0 && rank < 3) {
        int32_t value = rank;
        Call call;
        call.kind = TFR_BROADCAST;
        call.process_set = set;
        call.root = 2;
        call.tensors = {{{}, TFR_INT32, &value, &value}};
        ASSERT_EQ(call.Run(world), TFR_OK);
        EXPECT_EQ(value, 2);
        call.root = 1;
        tfr_error error = {};
        EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
        EXPECT_CONTAINS(std::string(error.text), "root_rank=1");
        EXPECT_CONTAINS(std::string(error.text), "ranks 0 and 2");
      }
      Barrier(world);
    });
  });
}

TEST(OneSetWaitsWhileAnotherGoesOn) {
  ForEachJob({3, 4}, [](const JobOptions& options) {
    Gate other_is_done;
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t stuck = Added(world, {0, 1});
      const int32_t busy = Added(world, {1, 2});  // rank 1 is in both
      if (rank == 0) {
        other_is_done.Pass();
        ExpectSum(world, stuck, rank, 2.0f);  // 1 of each
      } else if (rank == 1) {
        Pending waiting(world, stuck);
        for (int i = 0; i < 50; ++i) ExpectSum(world, busy, rank, 5.0f);
        other_is_done.Open();
        waiting.done.Pass();
        EXPECT_EQ(waiting.error.code, TFR_OK);
        EXPECT_EQ(waiting.value, 2.0f);
      } else if (rank == 2) {
        for (int i = 0; i < 50; ++i) ExpectSum(world, busy, rank, 5.0f);
      }
      Barrier(world);
    });
  });
}

TEST(ADelayInOneSetDoesNotHoldUpAnother) {
  JobOptions options;
  options.size = 4;
  options.faults = "rank=1 set=1 collective=0 do=delay:600";
  std::atomic<int> ends{0};
  std::atomic<int> fast_ends{-1};
  RunJob(options, [&](int rank, tfr_world* world) {
    const Ranks slow = {0, 1};
    const Ranks fast = {2, 3};
    Added(world, slow);
    Added(world, fast);
    ExpectSum(world, rank < 2 ? 1 : 2, rank, SumOf(rank < 2 ? slow : fast));
    const int order = ends.fetch_add(1);
    if (rank >= 2) fast_ends = std::max(fast_ends.load(), order);
  });
  EXPECT_EQ(fast_ends.load(), 1);
}

TEST(StrangersAndUnknownSetsAreRefusedAtOnce) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {0, 1});
      float value = 1.0f;
      tfr_error error = {};
      if (rank == 2) {
        EXPECT_EQ(Sum(world, set, &value, &error), TFR_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(error.text),
                  "rank 2 is not in process set 1 (ranks 0 and 1)");
      }
      EXPECT_EQ(Sum(world, 7, &value, &error), TFR_INVALID_ARGUMENT);
      EXPECT_EQ(std::string(error.text), "there is no process set 7");
      int32_t size = 0;
      int32_t place = 0;
      EXPECT_EQ(tfr_process_set_info(world, 7, &size, &place, &error),
                TFR_INVALID_ARGUMENT);
      if (rank < 2) ExpectSum(world, set, rank, 3.0f);
      Barrier(world);
    });
  });
}

TEST(WrongListsAreRefusedWithoutAskingAnyone) {
  JobOptions options;
  options.size = 3;
  RunJob(options, [&](int rank, tfr_world* world) {
    Added(world, {0, 2});
    if (rank == 0) {
      struct Case {
        Ranks ranks;
        const char* text;
      };
      for (const Case& c :
           std::vector<Case>{{{}, "at least one rank"},
                             {{0, 3}, "in 0 to 2. Received: rank 3"},
                             {{-1, 1}, "Received: rank -1"},
                             {{1, 0}, "rank 0 after rank 1"},
                             {{1, 1}, "rank 1 after rank 1"},
                             {{0, 2}, "already: process set 1"},
                             {{0, 1, 2}, "already: process set 0"}}) {
        CASE(c.text);
        int32_t id = 0;
        tfr_error error = {};
        EXPECT_EQ(Add(world, c.ranks, &id, &error), TFR_INVALID_ARGUMENT);
        EXPECT_CONTAINS(std::string(error.text), c.text);
      }
      tfr_error error = {};
      EXPECT_EQ(tfr_process_set_remove(world, 0, &error), TFR_INVALID_ARGUMENT);
      EXPECT_CONTAINS(std::string(error.text), "cannot be removed");
      EXPECT_EQ(tfr_process_set_remove(world, 9, &error), TFR_INVALID_ARGUMENT);
    }
    Barrier(world);
  });
}

TEST(DifferentCallsAreAnErrorOnAllRanks) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      int32_t id = 0;
      tfr_error error = {};
      const Ranks mine = rank == 0 ? Ranks{0, 1} : Ranks{1, 2};
      EXPECT_EQ(Add(world, mine, &id, &error), TFR_FAILED_PRECONDITION);
      EXPECT_CONTAINS(std::string(error.text), "rank 0 sent");
      EXPECT_CONTAINS(std::string(error.text), "ranks 1 and 2");
      const int32_t set = Added(world, {1, 2});
      EXPECT_EQ(set, 1);
      const int code = rank == 1 ? Add(world, {0, 1}, &id, &error)
                                 : tfr_process_set_remove(world, set, &error);
      EXPECT_EQ(code, TFR_FAILED_PRECONDITION);
      EXPECT_CONTAINS(std::string(error.text), "remove_process_set");
      if (rank > 0) ExpectSum(world, set, rank, 5.0f);
      Barrier(world);
    });
  });
}

TEST(SetsWithPendingCollectivesStay) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {1, 2});
      {
        std::unique_ptr<Pending> pending;
        if (rank == 2) pending = std::make_unique<Pending>(world, set);
        tfr_error error = {};
        EXPECT_EQ(tfr_process_set_remove(world, set, &error),
                  TFR_FAILED_PRECONDITION);
        EXPECT_CONTAINS(std::string(error.text), "pending on rank 2");
        if (rank == 1) pending = std::make_unique<Pending>(world, set);
        if (pending != nullptr) {
          pending->done.Pass();
          EXPECT_EQ(pending->error.code, TFR_OK);
        }
      }
      EXPECT_EQ(tfr_process_set_remove(world, set, nullptr), TFR_OK);
      float value = 1.0f;
      EXPECT_EQ(Sum(world, set, &value), TFR_INVALID_ARGUMENT);
      Barrier(world);
    });
  });
}

TEST(IdsAreUsedAgainInTheOrderRemoved) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      EXPECT_EQ(Added(world, {0}), 1);
      EXPECT_EQ(Added(world, {1}), 2);
      EXPECT_EQ(Added(world, {2}), 3);
      EXPECT_EQ(tfr_process_set_remove(world, 3, nullptr), TFR_OK);
      EXPECT_EQ(tfr_process_set_remove(world, 1, nullptr), TFR_OK);
      EXPECT_EQ(Added(world, {0, 1}), 3);
      EXPECT_EQ(Added(world, {1, 2}), 1);
      EXPECT_EQ(Added(world, {0, 2}), 4);
      if (rank < 2) ExpectSum(world, 3, rank, 3.0f);
      if (rank > 0) ExpectSum(world, 1, rank, 5.0f);
      if (rank != 1) ExpectSum(world, 4, rank, 4.0f);
      Barrier(world);
    });
  });
}

int CountEntries(const char* path) {
  int count = 0;
  DIR* folder = opendir(path);
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Descriptors and threads of this process, which holds all ranks. The side
// channel's thread may be about to let go of a set.
std::pair<int, int> Resources(std::pair<int, int> expected) {
  const auto deadline = tfring::Deadline::After(5);
  std::pair<int, int> now;
  do {
    now = {CountEntries("/proc/self/fd"), CountEntries("/proc/self/task")};
  } while (expected.first != 0 && now != expected && !deadline.expired());
  return now;
}

TEST(TwentyCyclesLeaveNothingBehind) {
  ForEachJob({4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      std::pair<int, int> before = {};
      const auto cycle = [&] {
        const int32_t set = Added(world, {1, 2, 3});
        EXPECT_EQ(set, 1);
        if (rank > 0) ExpectSum(world, set, rank, 9.0f);
        EXPECT_EQ(tfr_process_set_remove(world, set, nullptr), TFR_OK);
      };
      cycle();
      Barrier(world);
      if (rank == 0) before = Resources({});
      Barrier(world);
      for (int i = 0; i < 20; ++i) cycle();
      Barrier(world);
      if (rank == 0) EXPECT_TRUE(Resources(before) == before);
      Barrier(world);
    });
  });
}

TEST(ThreadsMaySubmitWhileASetIsRemoved) {
  ForEachJob({2}, [](const JobOptions& options) {
    JobOptions three = options;
    three.size = 3;
    three.hosts.emplace_back("c");
    RunJob(three, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {0, 1});
      std::thread submitter([&] {
        for (int sums = 0; rank < 2 && sums < 300;) {
          float value = 1.0f;
          const int code = Sum(world, set, &value);
          // Refused now and then while the others try to remove it.
          if (code == TFR_FAILED_PRECONDITION) continue;
          if (code == TFR_INVALID_ARGUMENT) return;  // it is gone
          ASSERT_EQ(code, TFR_OK);
          ASSERT_EQ(value, 2.0f);
          ++sums;
        }
      });
      int code = TFR_FAILED_PRECONDITION;
      while (code == TFR_FAILED_PRECONDITION) {
        code = tfr_process_set_remove(world, set, nullptr);
      }
      EXPECT_EQ(code, TFR_OK);
      submitter.join();
      Barrier(world);
    });
  });
}

TEST(ErrorsNameRanksOfTheJob) {
  ForEachJob({4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {1, 3});
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
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {1, 2, 3});
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

TEST(ARankThatLeavesEndsItsOwnSetsOnly) {
  ForEachJob({4}, [](const JobOptions& options) {
    Gate left;
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t others = Added(world, {0, 1, 2});
      const int32_t mine = Added(world, {1, 3});
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
    const int32_t set = Added(world, {1, 2});
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
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t set = Added(world, {1, 2});
      if (rank > 0) ExpectSum(world, set, rank, 5.0f);
      Barrier(world);
      if (rank == 0) return;
      float value = 1.0f;
      tfr_error error = {};
      while (Sum(world, set, &value, &error) == TFR_OK) {
      }
      EXPECT_EQ(error.code, TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "rank 0");
    });
  }
}

TEST(AnAbortEndsAllSets) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t first = Added(world, {1, 2});
      const int32_t second = Added(world, {0, 2});
      if (rank == 0) return tfr_world_abort(world, "ValueError: boom7");
      float value = 1.0f;
      tfr_error error = {};
      EXPECT_EQ(Sum(world, rank == 1 ? first : second, &value, &error),
                TFR_UNAVAILABLE);
      EXPECT_CONTAINS(std::string(error.text), "boom7");
    });
  });
}

TEST(StatsCountAllSets) {
  JobOptions options;
  options.size = 3;
  RunJob(options, [&](int rank, tfr_world* world) {
    const int32_t set = Added(world, {0, 1});
    tfr_stats before = {};
    tfr_world_stats(world, &before);
    for (int i = 0; rank < 2 && i < 5; ++i) ExpectSum(world, set, rank, 3.0f);
    ASSERT_EQ(tfr_process_set_remove(world, set, nullptr), TFR_OK);
    tfr_stats after = {};
    tfr_world_stats(world, &after);
    EXPECT_EQ(after.tensors - before.tensors, rank < 2 ? 5u : 0u);
    EXPECT_EQ(after.payload_bytes - before.payload_bytes, rank < 2 ? 20u : 0u);
    EXPECT_EQ(after.collectives - before.collectives, rank < 2 ? 6u : 1u);
    EXPECT_TRUE(after.staging_bytes_peak >= before.staging_bytes);
  });
}

// --- a member dies ----------------------------------------------------------

// Rank 1 is killed inside the set's collective; ranks 2 and 3 are in it, rank 0
// waits in one of the world.
ROLE(member) {
  JobOptions options;
  options.size = 4;
  options.fail_after_s = 15;
  if (argument == "hosts") options.hosts = {"a", "b", "a", "b"};
  options.faults = "rank=1 set=1 collective=1 chunk=1 do=kill";
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
  int32_t set = 0;
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
  return heard - begin < int64_t{5} * 1000000000 ? 0 : 15;
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

}  // namespace
}  // namespace tfring_test
