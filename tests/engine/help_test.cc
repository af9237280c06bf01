// Collectives that run on the thread that submits them
// (schedule/group_help.cc).
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "job.h"
#include "layouts.h"

namespace tfring_test {
namespace {

constexpr std::chrono::seconds kDeadline{20};

// One allreduce in place, of `count` floats that are 1.
class Submission {
 public:
  explicit Submission(size_t count) : values_(count, 1.0f) {}

  int Submit(tfr_world* world, const std::string& name, int32_t patience) {
    Call call;
    call.name = name;
    call.tensors = {{{static_cast<int64_t>(values_.size())},
                     TFR_FLOAT32,
                     values_.data(),
                     values_.data()}};
    call.patience = patience;
    call.done = &Submission::Done;
    call.user = this;
    return call.Submit(world);
  }
  bool AwaitDone() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kDeadline, [this] { return done_; });
  }
  bool done() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  // That `done` was called on.
  std::thread::id thread() const { return thread_; }
  int code() const { return code_; }
  bool AllAre(float value) const {
    return std::all_of(values_.begin(), values_.end(),
                       [value](float one) { return one == value; });
  }

 private:
  static void Done(void* user, const tfr_error* error) {
    auto* self = static_cast<Submission*>(user);
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->done_ = true;
    self->code_ = error->code;
    self->thread_ = std::this_thread::get_id();
    self->changed_.notify_all();
  }

  std::vector<float> values_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  int code_ = -1;
  std::thread::id thread_;
};

JobOptions Ranks(int size) {
  JobOptions options;
  options.size = size;
  return options;
}

TEST(ASmallCollectiveIsDoneBeforeSubmitReturns) {
  for (const int32_t patience : {TFR_LOOK, TFR_LINGER}) {
    RunJob(Ranks(1), [patience](int, tfr_world* world) {
      Submission one(16);
      ASSERT_EQ(one.Submit(world, "t", patience), TFR_OK);
      EXPECT_TRUE(one.done());
      EXPECT_TRUE(one.thread() == std::this_thread::get_id());
    });
  }
}

TEST(ALargeOneAndOneWithoutPatienceAreHandedOver) {
  struct Case {
    size_t count;
    int32_t patience;
  };
  for (const Case& one : {Case{16, TFR_HAND_OVER}, Case{32 * 1024, TFR_LOOK},
                          Case{2 * 1024 * 1024, TFR_LINGER}}) {
    RunJob(Ranks(1), [&one](int, tfr_world* world) {
      Submission submission(one.count);
      ASSERT_EQ(submission.Submit(world, "t", one.patience), TFR_OK);
      ASSERT_TRUE(submission.AwaitDone());
      EXPECT_TRUE(submission.thread() != std::this_thread::get_id());
    });
  }
}

TEST(ACallerIsNotKeptByARankThatIsLate) {
  for (const int32_t patience : {TFR_LOOK, TFR_LINGER}) {
    Meeting returned(2);
    RunJob(Ranks(2), [&](int rank, tfr_world* world) {
      Submission one(16);
      if (rank == 1) returned.Pass();  // comes once rank 0 has gone on
      ASSERT_EQ(one.Submit(world, "t", patience), TFR_OK);
      if (rank == 0) {
        EXPECT_TRUE(!one.done());
        returned.Pass();
      }
      ASSERT_TRUE(one.AwaitDone());
      EXPECT_EQ(one.code(), TFR_OK);
      EXPECT_TRUE(one.AllAre(2.0f));
    });
  }
}

TEST(DisagreementReachesACallerThatHelps) {
  RunJob(Ranks(2), [&](int rank, tfr_world* world) {
    Submission unequal(rank == 0 ? 16 : 17);
    ASSERT_EQ(unequal.Submit(world, "t", TFR_LINGER), TFR_OK);
    ASSERT_TRUE(unequal.AwaitDone());
    EXPECT_EQ(unequal.code(), TFR_FAILED_PRECONDITION);
    Submission equal(16);
    ASSERT_EQ(equal.Submit(world, "t", TFR_LINGER), TFR_OK);
    ASSERT_TRUE(equal.AwaitDone());
    EXPECT_TRUE(equal.AllAre(2.0f));
  });
}

TEST(ShutdownEndsWhatNobodyElseHas) {
  Meeting checked(2);
  RunJob(Ranks(2), [&](int rank, tfr_world* world) {
    if (rank == 1) return checked.Pass();
    Submission one(16);
    ASSERT_EQ(one.Submit(world, "t", TFR_LINGER), TFR_OK);
    checked.Pass();
    // Rank 1 leaves without it.
    ASSERT_TRUE(one.AwaitDone());
    EXPECT_EQ(one.code(), TFR_UNAVAILABLE);
  });
}

constexpr int kThreads = 3;
constexpr int kEach = 60;

// Submits some collectives, large and small, with and without patience; what
// each rank's thread has is the same on all ranks, but in an order of its own.
void SubmitShuffled(int rank, int thread, tfr_world* world,
                    std::deque<Submission>* submissions) {
  std::vector<int> order(kEach);
  for (int i = 0; i < kEach; ++i) order[static_cast<size_t>(i)] = i;
  std::mt19937 random(static_cast<uint32_t>(100 * rank + thread));
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    const std::string name =
        "t" + std::to_string(thread) + "/" + std::to_string(i);
    const auto at = static_cast<size_t>(thread * kEach + i);
    EXPECT_EQ((*submissions)[at].Submit(world, name,
                                        static_cast<int32_t>(random() % 3)),
              TFR_OK);
  }
}

TEST(ManyThreadsSubmitInAnyOrder) {
  ForEachJob({1, 2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      std::deque<Submission> submissions;
      const std::vector<size_t> counts = {1, 1000, 40000};
      for (size_t i = 0; i < kThreads * kEach; ++i) {
        submissions.emplace_back(counts[i % counts.size()]);
      }
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back(
            [&, t] { SubmitShuffled(rank, t, world, &submissions); });
      }
      for (std::thread& thread : threads) thread.join();
      for (Submission& one : submissions) {
        ASSERT_TRUE(one.AwaitDone());
        EXPECT_EQ(one.code(), TFR_OK);
        EXPECT_TRUE(one.AllAre(static_cast<float>(options.size)));
      }
    });
  });
}

}  // namespace
}  // namespace tfring_test
