// Small collectives in one round (schedule/express.h) among large ones, in an
// order that differs from rank to rank: any mixture ends, with the right sums.
//
// TFRING_TEST_SOAK_SECONDS makes each case longer.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "job.h"

namespace tfring_test {
namespace {

constexpr int kStreams = 3;
constexpr int kCallsInARound = 60;

double Seconds() {
  const char* const text = std::getenv("TFRING_TEST_SOAK_SECONDS");
  return text == nullptr ? 0.3 : std::atof(text);
}

// What the n-th call of a stream is, alike on all ranks.
struct Plan {
  std::vector<size_t> counts;
  int32_t reduce_op;
  int32_t wire_dtype;
  bool waits;  // tfr_run or tfr_submit
  int32_t patience;

  Plan(int stream, int number) {
    std::mt19937 random(static_cast<unsigned>(stream * 1000003 + number));
    constexpr std::array<size_t, 6> kCounts = {0, 1, 7, 200, 600, 40000};
    const size_t tensors = 1 + random() % 3;
    for (size_t t = 0; t < tensors; ++t) {
      const size_t kinds = random() % 20 == 0 ? kCounts.size() : 5;
      counts.push_back(kCounts[random() % kinds]);
    }
    constexpr std::array<int32_t, 4> kOps = {TFR_SUM, TFR_AVERAGE, TFR_MIN,
                                             TFR_MAX};
    reduce_op = kOps[random() % kOps.size()];
    wire_dtype = random() % 4 == 0 ? TFR_BFLOAT16 : 0;
    waits = random() % 2 == 0;
    constexpr std::array<int32_t, 3> kPatience = {TFR_HAND_OVER, TFR_LOOK,
                                                  TFR_LINGER};
    patience = kPatience[random() % kPatience.size()];
  }
};

float Expected(int32_t reduce_op, int size) {
  switch (reduce_op) {
    case TFR_SUM:
      return static_cast<float>(size * (size + 1)) / 2;
    case TFR_AVERAGE:
      return static_cast<float>(size + 1) / 2;
    case TFR_MIN:
      return 1;
    default:
      return static_cast<float>(size);
  }
}

// One call and the tensors that it reduces in place.
class Work {
 public:
  Work(const Plan& plan, int rank, int size) : plan_(plan), size_(size) {
    for (const size_t count : plan_.counts) {
      values_.emplace_back(count, static_cast<float>(rank + 1));
    }
  }

  void Start(tfr_world* world, const std::string& name, int64_t set) {
    Call call;
    call.name = name;
    call.process_set = set;
    call.reduce_op = plan_.reduce_op;
    call.wire_dtype = plan_.wire_dtype;
    call.patience = plan_.patience;
    for (auto& one : values_) {
      call.tensors.push_back({{static_cast<int64_t>(one.size())},
                              TFR_FLOAT32,
                              one.data(),
                              one.data()});
    }
    if (plan_.waits) {
      done_.store(call.Run(world) == TFR_OK);
      return;
    }
    call.done = [](void* user, const tfr_error* error) {
      if (error->code == TFR_OK) static_cast<Work*>(user)->done_.store(true);
    };
    call.user = this;
    EXPECT_EQ(call.Submit(world), TFR_OK);
  }
  void Check() {
    while (!done_.load()) std::this_thread::yield();
    const float expected = Expected(plan_.reduce_op, size_);
    for (const auto& one : values_) {
      EXPECT_EQ(std::count(one.begin(), one.end(), expected),
                static_cast<std::ptrdiff_t>(one.size()));
    }
  }

 private:
  const Plan plan_;
  const int size_;
  std::vector<std::vector<float>> values_;
  std::atomic<bool> done_{false};
};

// The calls of one stream; streams of a rank run side by side.
void RunStream(tfr_world* world, int rank, int size, int stream, int64_t set,
               int first) {
  std::mt19937 random(static_cast<unsigned>(rank * 31 + stream));
  std::deque<Work> works;
  for (int i = 0; i < kCallsInARound; ++i) {
    works.emplace_back(Plan(stream, first + i), rank, size);
    works.back().Start(world, "stream " + std::to_string(stream), set);
    if (random() % 16 == 0) std::this_thread::yield();
  }
  for (Work& work : works) work.Check();
}

// The first two ranks have a set of their own, for the last stream.
int64_t AddSet(tfr_world* world) {
  const int32_t ranks[] = {0, 1};
  int64_t set = 0;
  tfr_error error = {};
  EXPECT_EQ(tfr_process_set_add(world, ranks, 2, &set, &error), TFR_OK);
  return set;
}

void RunRound(tfr_world* world, int rank, int size, int64_t set, int round) {
  std::vector<std::thread> streams;
  const int first = round * kCallsInARound;
  for (int s = 0; s + 1 < kStreams; ++s) {
    streams.emplace_back(RunStream, world, rank, size, s, 0, first);
  }
  if (rank < 2) {
    streams.emplace_back(RunStream, world, rank, 2, kStreams - 1, set, first);
  }
  for (std::thread& stream : streams) stream.join();
}

void Soak(int size) {
  JobOptions options;
  options.size = size;
  RunJob(options, [&](int rank, tfr_world* world) {
    const int64_t set = size > 2 ? AddSet(world) : 0;
    const auto end =
        std::chrono::steady_clock::now() +
        std::chrono::milliseconds(static_cast<int64_t>(Seconds() * 1000));
    float stop = 0;
    for (int round = 0; stop == 0; ++round) {
      RunRound(world, rank, size, set, round);
      // Rank 0 says whether there is another round.
      const bool over = std::chrono::steady_clock::now() >= end;
      stop = rank == 0 && over ? 1.0f : 0.0f;
      Call call;
      call.name = "stop";
      call.tensors = {{{}, TFR_FLOAT32, &stop, &stop}};
      ASSERT_EQ(call.Run(world), TFR_OK);
    }
  });
}

TEST(TwoRanks) { Soak(2); }
TEST(ThreeRanks) { Soak(3); }
TEST(FourRanks) { Soak(4); }

}  // namespace
}  // namespace tfring_test
