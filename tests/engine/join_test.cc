// Ranks that have no more to contribute, and those that go on without them.
#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "joins.h"
#include "layouts.h"
#include "values.h"

namespace tfring_test {
namespace {

// Rank r has `size - r` batches: the sum of those that have one with number
// `batch`.
float SumOfActive(int size, int batch) {
  float sum = 0;
  for (int r = 0; r < size && size - r > batch; ++r) {
    sum += static_cast<float>(r + 1);
  }
  return sum;
}

TEST(UnequalNumbersOfBatches) {
  ForEachJob({1, 2, 3, 4}, [](const JobOptions& options) {
    const int size = options.size;
    RunJob(options, [&](int rank, tfr_world* world) {
      for (int round = 0; round < 3; ++round) {
        for (int batch = 0; batch < size - rank; ++batch) {
          const float active = static_cast<float>(size - batch);
          float value = static_cast<float>(rank + 1);
          ASSERT_EQ(Reduce(world, TFR_SUM, &value), TFR_OK);
          ASSERT_EQ(value, SumOfActive(size, batch));
          value = static_cast<float>(rank + 1);
          ASSERT_EQ(Reduce(world, TFR_AVERAGE, &value), TFR_OK);
          ASSERT_EQ(value, SumOfActive(size, batch) / active);
        }
        EXPECT_EQ(Join(world), 0);
        float value = 1.0f;
        ASSERT_EQ(Reduce(world, TFR_SUM, &value), TFR_OK);
        EXPECT_EQ(value, static_cast<float>(size));
      }
    });
  });
}

TEST(JoinedRanksContributeNothingToAnyOperation) {
  ForEachJob({3, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      if (rank > 0) {
        float value = -static_cast<float>(rank + 1);  // all below zero
        ASSERT_EQ(Reduce(world, TFR_MAX, &value), TFR_OK);
        EXPECT_EQ(value, -2.0f);
        value = static_cast<float>(rank + 1);
        ASSERT_EQ(Reduce(world, TFR_MIN, &value), TFR_OK);
        EXPECT_EQ(value, 2.0f);
        value = static_cast<float>(rank + 1);
        ASSERT_EQ(Reduce(world, TFR_PRODUCT, &value), TFR_OK);
        EXPECT_EQ(value, options.size == 3 ? 6.0f : 24.0f);
      }
      EXPECT_TRUE(Join(world) >= 0);
    });
  });
}

TEST(AdasumGoesOverTheActiveRanks) {
  ForEachJob({2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      if (rank == 0) {
        std::vector<float> data = {3.0f, 4.0f, -5.0f};
        const std::vector<float> own = data;
        Call call;
        call.reduce_op = TFR_ADASUM;
        call.tensors = {{{3}, TFR_FLOAT32, data.data(), data.data()}};
        ASSERT_EQ(call.Run(world), TFR_OK);
        EXPECT_TRUE(data == own);
      }
      EXPECT_EQ(Join(world), 0);
    });
  });
}

// The bytes that ranks get from an allreduce of all dtypes.
std::vector<Bytes> ReduceAll(tfr_world* world, int rank, int32_t op,
                             size_t count) {
  std::vector<Bytes> data;
  for (const int32_t dtype : kDtypes) {
    data.push_back(
        RandomValues(dtype, count, static_cast<uint32_t>(100 * rank + dtype)));
  }
  Call call;
  call.name = "all";
  call.reduce_op = op;
  call.prescale = 1.0;
  for (size_t t = 0; t < data.size(); ++t) {
    const int32_t dtype = kDtypes[t];
    if (dtype == TFR_BOOL && op == TFR_SUM) {
      data[t].clear();
      continue;
    }
    call.tensors.push_back(
        {{static_cast<int64_t>(count)}, dtype, data[t].data(), data[t].data()});
  }
  EXPECT_EQ(call.Run(world), TFR_OK);
  return data;
}

TEST(ActiveRanksGetTheBitsOfAJobOfTheirOwn) {
  for (const int32_t op : {TFR_SUM, TFR_MIN, TFR_MAX, TFR_PRODUCT}) {
    for (const size_t count : {size_t{1}, size_t{5}, size_t{40001}}) {
      std::vector<Bytes> wanted;
      JobOptions two;
      RunJob(two, [&](int rank, tfr_world* world) {
        const std::vector<Bytes> got = ReduceAll(world, rank, op, count);
        if (rank == 0) wanted = got;
      });
      for (const Layout& layout : Layouts(4)) {
        CASE(layout.name, ", op ", op, ", count ", count);
        JobOptions options;
        options.size = 4;
        options.hosts = layout.hosts;
        options.shared_memory = layout.shared_memory;
        RunJob(options, [&](int rank, tfr_world* world) {
          // Ranks 1 and 2 are active, as ranks 0 and 1 of the job of two.
          if (rank == 1 || rank == 2) {
            EXPECT_TRUE(ReduceAll(world, rank - 1, op, count) == wanted);
          }
          EXPECT_TRUE(Join(world) >= 0);
        });
      }
    }
  }
}

TEST(OnlyAllreduceIsServedWhileSomeoneHasJoined) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      for (const int32_t kind : {TFR_BROADCAST, TFR_BARRIER}) {
        if (rank > 0) {
          float value = 1.0f;
          Call call;
          call.name = "other";
          call.kind = kind;
          if (kind == TFR_BROADCAST) {
            call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
          }
          tfr_error error = {};
          EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
          EXPECT_CONTAINS(std::string(error.text), "rank 0 has joined");
          ASSERT_EQ(Reduce(world, TFR_SUM, &value), TFR_OK);
          EXPECT_EQ(value, static_cast<float>(options.size - 1));
        }
        EXPECT_TRUE(Join(world) >= 0);
      }
      int64_t id = 0;
      const int32_t ranks[] = {0};
      if (rank > 0) {
        tfr_error error = {};
        EXPECT_EQ(tfr_process_set_add(world, ranks, 1, &id, &error),
                  TFR_FAILED_PRECONDITION);
        EXPECT_CONTAINS(std::string(error.text), "rank 0 has joined");
      }
      EXPECT_TRUE(Join(world) >= 0);
      EXPECT_EQ(tfr_process_set_add(world, ranks, 1, &id, nullptr), TFR_OK);
      EXPECT_EQ(id, 1);
    });
  });
}

TEST(MismatchesAndFaultsAreToldAmongTheActive) {
  ForEachJob({3, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      if (rank != 1) {
        std::vector<float> data(8, 1.0f);
        Call call;
        call.tensors = {
            {{rank == 0 ? 3 : 4}, TFR_FLOAT32, data.data(), data.data()}};
        tfr_error error = {};
        EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
        EXPECT_CONTAINS(std::string(error.text), "rank 0 sent allreduce");
        EXPECT_CONTAINS(std::string(error.text), "rank 1 sent join");
        call.tensors[0].dims[0] = 4;
        if (rank == 0) call.fault = "it is wrong";
        EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
        EXPECT_CONTAINS(std::string(error.text), "it is wrong");
        call.fault = nullptr;
        EXPECT_EQ(call.Run(world), TFR_OK);
        EXPECT_EQ(data[0], static_cast<float>(options.size - 1));
      }
      EXPECT_TRUE(Join(world) >= 0);
    });
  });
}

TEST(AFaultOfTheOnlyActiveRank) {
  ForEachJob({2}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      if (rank == 0) {
        Call call;
        call.fault = "it is wrong";
        tfr_error error = {};
        EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
        EXPECT_CONTAINS(std::string(error.text), "rank 0: it is wrong");
      }
      EXPECT_EQ(Join(world), 0);
    });
  });
}

// What has been handed over, and its end.
struct Pending {
  float value = 1.0f;
  int64_t last = -1;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  tfr_error error = {};

  void Submit(tfr_world* world, int32_t kind, const char* name) {
    Call call;
    call.name = name;
    call.kind = kind;
    call.counts = &last;
    if (kind == TFR_ALLREDUCE) {
      call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
    }
    call.user = this;
    call.done = [](void* user, const tfr_error* error) {
      auto* pending = static_cast<Pending*>(user);
      const std::lock_guard<std::mutex> lock(pending->mutex);
      pending->error = *error;
      pending->ended = true;
      pending->changed.notify_all();
    };
    EXPECT_EQ(call.Submit(world), TFR_OK);
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return ended; });
    EXPECT_EQ(std::string(error.text), "");
  }
};

TEST(AJoinComesAfterWhatIsPending) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    std::promise<void> asked;
    const std::shared_future<void> rank_0_has_asked(asked.get_future());
    RunJob(options, [&](int rank, tfr_world* world) {
      constexpr size_t kOps = 20;
      std::vector<Pending> ops(kOps);
      Pending join;
      const auto name = [](size_t i) { return "op" + std::to_string(i); };
      // Rank 0 has half of them, submitted together with its join.
      const size_t mine = rank == 0 ? kOps / 2 : kOps;
      if (rank != 0) rank_0_has_asked.wait();
      for (size_t i = 0; i < mine; ++i) {
        const size_t op = rank == 0 ? mine - 1 - i : i;
        ops[op].Submit(world, TFR_ALLREDUCE, name(op).c_str());
      }
      join.Submit(world, TFR_JOIN, "join");
      if (rank == 0) {
        // Its join cannot have ended: the others have not begun.
        float value = 1.0f;
        tfr_error error = {};
        EXPECT_EQ(Reduce(world, TFR_SUM, &value, &error),
                  TFR_FAILED_PRECONDITION);
        EXPECT_CONTAINS(std::string(error.text), "this rank has joined");
        asked.set_value();
      }
      for (size_t i = 0; i < mine; ++i) {
        ops[i].Wait();
        EXPECT_EQ(ops[i].value,
                  static_cast<float>(options.size - (i < kOps / 2 ? 0 : 1)));
      }
      join.Wait();
      EXPECT_TRUE(join.last >= 0);
    });
  });
}

TEST(NamesCountFromTheStartAfterAJoin) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      for (int i = 0; i < 5 * rank; ++i) {
        float value = 1.0f;
        ASSERT_EQ(Reduce(world, TFR_SUM, &value), TFR_OK);
      }
      EXPECT_EQ(Join(world), options.size - 1);
      for (int i = 0; i < 5; ++i) {
        float value = 1.0f;
        ASSERT_EQ(Reduce(world, TFR_SUM, &value), TFR_OK);
        EXPECT_EQ(value, static_cast<float>(options.size));
      }
    });
  });
}

TEST(LargeTensorsPassByJoinedRanks) {
  ForEachJob({3, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      constexpr size_t kCount = 1000003;
      if (rank != 0) {
        std::vector<float> data(kCount, static_cast<float>(rank));
        Call call;
        call.reduce_op = TFR_AVERAGE;
        call.tensors = {
            {{int64_t{kCount}}, TFR_FLOAT32, data.data(), data.data()}};
        ASSERT_EQ(call.Run(world), TFR_OK);
        const float want = options.size == 3 ? 1.5f : 2.0f;
        for (const float value : data) ASSERT_EQ(value, want);
      }
      EXPECT_TRUE(Join(world) >= 0);
    });
  });
}

TEST(JoinIsForAllRanksOnly) {
  JobOptions options;
  RunJob(options, [&](int rank, tfr_world* world) {
    const int32_t ranks[] = {0};
    int64_t id = 0;
    ASSERT_EQ(tfr_process_set_add(world, ranks, 1, &id, nullptr), TFR_OK);
    if (rank == 0) {
      Call call;
      call.kind = TFR_JOIN;
      call.process_set = id;
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
      EXPECT_CONTAINS(std::string(error.text), "process set 1");
    }
    EXPECT_TRUE(Join(world) >= 0);
  });
}

TEST(ProcessSetsGoOnWhileSomeoneHasJoined) {
  ForEachJob({3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const int32_t ranks[] = {1, 2};
      int64_t id = 0;
      ASSERT_EQ(tfr_process_set_add(world, ranks, 2, &id, nullptr), TFR_OK);
      for (int i = 0; rank > 0 && i < 5; ++i) {
        float value = 1.0f;
        Call call;
        call.process_set = id;
        call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
        ASSERT_EQ(call.Run(world), TFR_OK);
        EXPECT_EQ(value, 2.0f);
      }
      EXPECT_TRUE(Join(world) >= 0);
    });
  });
}

}  // namespace
}  // namespace tfring_test
