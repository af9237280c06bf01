// Groups of some ranks: how they come and go, and that they run for themselves.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "resources.h"
#include "sets.h"

namespace tfring_test {
namespace {

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
        const int64_t id = Added(world, sets[s]);
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
      const int64_t set = Added(world, {1, 2, 3});
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
      const int64_t set = Added(world, {0, 2});
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
      const int64_t stuck = Added(world, {0, 1});
      const int64_t busy = Added(world, {1, 2});  // rank 1 is in both
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
  options.faults = "rank=1 set=1 collective=0 do=delay:3000";
  std::atomic<int> ends{0};
  std::atomic<int> fast_first{0};
  RunJob(options, [&](int rank, tfr_world* world) {
    const Ranks slow = {0, 1};
    const Ranks fast = {2, 3};
    Added(world, slow);
    Added(world, fast);
    ExpectSum(world, rank < 2 ? 1 : 2, rank, SumOf(rank < 2 ? slow : fast));
    const int order = ends.fetch_add(1);
    if (rank >= 2 && order < 2) ++fast_first;
  });
  EXPECT_EQ(fast_first.load(), 2);
}

TEST(StrangersAndUnknownSetsAreRefusedAtOnce) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int64_t set = Added(world, {0, 1});
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

TEST(WrongListsOfOneRankAreAnErrorOnAllRanks) {
  JobOptions options;
  options.size = 3;
  RunJob(options, [&](int rank, tfr_world* world) {
    Added(world, {0, 2});
    struct Case {
      Ranks ranks;
      std::string text;
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
      int64_t id = 0;
      tfr_error error = {};
      const Ranks mine = rank == 0 ? c.ranks : Ranks{1, 2};
      EXPECT_EQ(Add(world, mine, &id, &error), TFR_INVALID_ARGUMENT);
      EXPECT_CONTAINS(std::string(error.text), c.text);
      if (rank > 0) EXPECT_CONTAINS(std::string(error.text), "rank 0: ");
    }
    EXPECT_EQ(Added(world, {1, 2}), 2);
    Barrier(world);
  });
}

TEST(WrongSetsAreNotRemoved) {
  JobOptions options;
  options.size = 2;
  RunJob(options, [&](int, tfr_world* world) {
    tfr_error error = {};
    EXPECT_EQ(tfr_process_set_remove(world, 0, &error), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(std::string(error.text), "cannot be removed");
    EXPECT_EQ(tfr_process_set_remove(world, 9, &error), TFR_INVALID_ARGUMENT);
    Barrier(world);
  });
}

TEST(DifferentCallsAreAnErrorOnAllRanks) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      int64_t id = 0;
      tfr_error error = {};
      const Ranks mine = rank == 0 ? Ranks{0, 1} : Ranks{1, 2};
      EXPECT_EQ(Add(world, mine, &id, &error), TFR_FAILED_PRECONDITION);
      EXPECT_CONTAINS(std::string(error.text), "rank 0 sent");
      EXPECT_CONTAINS(std::string(error.text), "ranks 1 and 2");
      const int64_t set = Added(world, {1, 2});
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
      const int64_t set = Added(world, {1, 2});
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
      // The same ids, but other handles: the old ones mean nothing any more.
      constexpr int64_t kSecond = int64_t{1} << 32;
      EXPECT_EQ(Added(world, {0, 1}), kSecond + 3);
      EXPECT_EQ(Added(world, {1, 2}), kSecond + 1);
      EXPECT_EQ(Added(world, {0, 2}), 4);
      float value = 1.0f;
      tfr_error error = {};
      EXPECT_EQ(Sum(world, 3, &value, &error), TFR_INVALID_ARGUMENT);
      EXPECT_CONTAINS(std::string(error.text), "another has its id");
      EXPECT_EQ(tfr_process_set_remove(world, 3, nullptr),
                TFR_INVALID_ARGUMENT);
      if (rank < 2) ExpectSum(world, kSecond + 3, rank, 3.0f);
      if (rank > 0) ExpectSum(world, kSecond + 1, rank, 5.0f);
      if (rank != 1) ExpectSum(world, 4, rank, 4.0f);
      Barrier(world);
    });
  });
}

TEST(TwentyCyclesLeaveNothingBehind) {
  ForEachJob({4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const auto cycle = [&] {
        const int64_t set = Added(world, {1, 2, 3});
        if (rank > 0) ExpectSum(world, set, rank, 9.0f);
        EXPECT_EQ(tfr_process_set_remove(world, set, nullptr), TFR_OK);
      };
      cycle();
      Barrier(world);
      const Resources before;
      Barrier(world);
      for (int i = 0; i < 20; ++i) cycle();
      Barrier(world);
      if (rank == 0) EXPECT_TRUE(ComesDownTo(before));
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
      const int64_t set = Added(world, {0, 1});
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

TEST(StatsCountAllSets) {
  JobOptions options;
  options.size = 3;
  RunJob(options, [&](int rank, tfr_world* world) {
    const int64_t set = Added(world, {0, 1});
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

}  // namespace
}  // namespace tfring_test
