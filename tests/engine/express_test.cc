// Small collectives whose data travels with the announcement
// (schedule/express.h).
#include "custom_ops/core/schedule/express.h"

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/transport/shared_memory.h"
#include "job.h"
#include "values.h"

namespace tfring_test {
namespace {

using tfring::Express;
using tfring::SharedMemory;
using Votes = tfring::Express::Votes;

// Ranks that share a memory.
class Ranks {
 public:
  explicit Ranks(int size) {
    EXPECT_OK(SharedMemory::Create(Express::Bytes(size), &memory_));
    for (int r = 0; r < size; ++r) {
      ranks_.push_back(std::make_unique<Express>(memory_.data(), size, r));
    }
  }
  Express& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  bool Fill(int rank, uint64_t key) {
    char* const place = (*this)[rank].Begin();
    if (place == nullptr) return false;
    *place = static_cast<char>(rank + 1);
    (*this)[rank].Fill(key, 100 + rank);
    return true;
  }

 private:
  SharedMemory memory_;
  std::vector<std::unique_ptr<Express>> ranks_;
};

TEST(AllSeeWhatAllHaveFilled) {
  Ranks ranks(3);
  for (uint64_t round = 0; round < 20; ++round) {
    for (int r = 0; r < 3; ++r) {
      if (r > 0) EXPECT_TRUE(ranks[0].Count() == Votes::kOpen);
      ASSERT_TRUE(ranks.Fill(r, round));
    }
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(ranks[r].Count() == Votes::kAll);
      EXPECT_EQ(*ranks[r].payload(2), 3);
      EXPECT_EQ(ranks[r].filled_ns(1), 101);
      ranks[r].Release();
    }
  }
}

TEST(DifferentCollectivesAreVoidForAll) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.Fill(0, 1));
  ASSERT_TRUE(ranks.Fill(1, 2));
  for (int r = 0; r < 2; ++r) {
    EXPECT_TRUE(ranks[r].Count() == Votes::kVoid);
    ranks[r].Release();
  }
}

TEST(OneRefusalIsVoidForAll) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.Fill(0, 1));
  EXPECT_TRUE(ranks[2].IsCalled());
  EXPECT_TRUE(ranks[2].Refuse());
  EXPECT_FALSE(ranks[2].IsCalled());
  EXPECT_FALSE(ranks[2].Refuse());
  EXPECT_TRUE(ranks[0].Count() == Votes::kOpen);  // rank 1 has not answered
  EXPECT_FALSE(ranks.Fill(1, 1));                 // pointless
  EXPECT_TRUE(ranks[1].Refuse());
  EXPECT_TRUE(ranks[0].Count() == Votes::kVoid);
  ranks[0].Release();
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(ranks.Fill(r, 2));
  EXPECT_TRUE(ranks[0].Count() == Votes::kAll);
}

TEST(APlaceIsKeptUntilAllHaveReadIt) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.Fill(0, 1));
  ASSERT_TRUE(ranks.Fill(1, 1));
  EXPECT_TRUE(ranks[0].Count() == Votes::kAll);
  ranks[0].Release();
  // Rank 1 has yet to read. It refuses what follows, since it has something
  // else, and rank 0 goes on.
  int filled = 0;
  while (filled < 10 && ranks.Fill(0, 9)) {
    ++filled;
    ASSERT_TRUE(ranks[1].Refuse());
    EXPECT_TRUE(ranks[0].Count() == Votes::kVoid);
    ranks[0].Release();
  }
  EXPECT_EQ(filled, 3);
  EXPECT_TRUE(ranks[1].Count() == Votes::kAll);
  EXPECT_EQ(*ranks[1].payload(0), 1);
  ranks[1].Release();
  EXPECT_TRUE(ranks.Fill(0, 10));
}

TEST(BitsAreThoseOfTheDataPlane) {
  struct Case {
    int32_t dtype;
    int32_t op;
    double prescale;
  };
  std::vector<Case> cases;
  for (const int32_t dtype : kDtypes) {
    cases.push_back({dtype, TFR_MAX, 1.0});
    if (dtype == TFR_BOOL) continue;
    cases.push_back({dtype, TFR_SUM, 1.0});
    cases.push_back({dtype, TFR_AVERAGE, 1.0});
  }
  cases.push_back({TFR_FLOAT32, TFR_SUM, 1.0 / 3});
  cases.push_back({TFR_BFLOAT16, TFR_AVERAGE, 1.0 / 3});
  JobOptions options;
  options.size = 3;
  RunJob(options, [&](int rank, tfr_world* world) {
    for (const Case& one : cases) {
      CASE(one.dtype, " ", one.op, " ", one.prescale);
      constexpr int64_t kCount = 37;
      constexpr int64_t kLarge = 4096;
      const Bytes in =
          RandomValues(one.dtype, kLarge, static_cast<uint32_t>(7 + rank));
      Bytes small(in.size()), large(in.size());
      Call call;
      call.reduce_op = one.op;
      call.prescale = one.prescale;
      call.tensors = {{{kCount}, one.dtype, in.data(), small.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      call.tensors = {{{kLarge}, one.dtype, in.data(), large.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(std::memcmp(small.data(), large.data(),
                            kCount * tfring::DtypeSize(one.dtype)),
                0);
    }
  });
}

void CountDone(void* user, const tfr_error* error) {
  if (error->code == TFR_OK) static_cast<std::atomic<int>*>(user)->fetch_add(1);
}

// Ranks run and submit small and large ones from several threads, each rank in
// an order of its own.
TEST(AnyMixtureEnds) {
  for (const int size : {2, 3, 4}) {
    CASE(size, " ranks");
    JobOptions options;
    options.size = size;
    const float sum = static_cast<float>(size * (size + 1)) / 2;
    RunJob(options, [&](int rank, tfr_world* world) {
      constexpr int kRounds = 150;
      std::atomic<int> submitted{0};
      std::vector<std::vector<float>> values;
      values.reserve(kRounds);
      std::vector<std::thread> threads;
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < kRounds; ++i) {
            const size_t count = i % 5 == t ? 5000 : 3;
            std::vector<float> data(count, static_cast<float>(rank + 1));
            Call call;
            call.name = "thread " + std::to_string(t);
            call.tensors = {{{static_cast<int64_t>(count)},
                             TFR_FLOAT32,
                             data.data(),
                             data.data()}};
            EXPECT_EQ(call.Run(world), TFR_OK);
            EXPECT_EQ(data.back(), sum);
          }
        });
      }
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int i = 0; i < kRounds; ++i) {
        values.emplace_back(size_t{2}, static_cast<float>(rank + 1));
        Call call;
        call.name = "submitted";
        call.tensors = {
            {{2}, TFR_FLOAT32, values.back().data(), values.back().data()}};
        call.done = &CountDone;
        call.user = &submitted;
        EXPECT_EQ(call.Submit(world), TFR_OK);
        if (random() % 4 == 0) std::this_thread::yield();
      }
      for (std::thread& thread : threads) thread.join();
      Call barrier;
      barrier.name = "end";
      barrier.kind = TFR_BARRIER;
      EXPECT_EQ(barrier.Run(world), TFR_OK);
      while (submitted.load() < kRounds) std::this_thread::yield();
      for (const auto& one : values) EXPECT_EQ(one[1], sum);
    });
  }
}

TEST(MismatchesAreNamed) {
  JobOptions options;
  RunJob(options, [&](int rank, tfr_world* world) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> data(2000, 1.0f);
      Call call;
      const int64_t mine = rank == 0 ? 3 : 1 + round * 900;
      call.tensors = {{{mine}, TFR_FLOAT32, data.data(), data.data()}};
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
      EXPECT_CONTAINS(error.text, "rank 1");
      call.tensors[0].dims = {4};
      EXPECT_EQ(call.Run(world, &error), TFR_OK);
    }
  });
}

}  // namespace
}  // namespace tfring_test
