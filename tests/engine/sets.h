// Process sets of a job whose ranks are threads.
#ifndef TFRING_TESTS_ENGINE_SETS_H_
#define TFRING_TESTS_ENGINE_SETS_H_

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "layouts.h"

namespace tfring_test {

using Ranks = std::vector<int32_t>;

inline bool Holds(const Ranks& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

inline int Add(tfr_world* world, const Ranks& ranks, int64_t* id,
               tfr_error* error = nullptr) {
  return tfr_process_set_add(world, ranks.data(),
                             static_cast<int32_t>(ranks.size()), id, error);
}

// The id, or -1 where that failed.
inline int64_t Added(tfr_world* world, const Ranks& ranks) {
  tfr_error error = {};
  int64_t id = -1;
  EXPECT_EQ(Add(world, ranks, &id, &error), TFR_OK);
  EXPECT_EQ(std::string(error.text), "");
  return id;
}

inline int Sum(tfr_world* world, int64_t set, float* value,
               tfr_error* error = nullptr) {
  Call call;
  call.process_set = set;
  call.tensors = {{{}, TFR_FLOAT32, value, value}};
  return call.Run(world, error);
}

inline void ExpectSum(tfr_world* world, int64_t set, int rank, float want) {
  float value = static_cast<float>(rank + 1);
  tfr_error error = {};
  EXPECT_EQ(Sum(world, set, &value, &error), TFR_OK);
  EXPECT_EQ(std::string(error.text), "");
  EXPECT_EQ(value, want);
}

inline float SumOf(const Ranks& ranks) {
  float sum = 0;
  for (const int32_t rank : ranks) sum += static_cast<float>(rank + 1);
  return sum;
}

inline void Barrier(tfr_world* world) {
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

  explicit Pending(tfr_world* world, int64_t set, const char* name = "t") {
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

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_SETS_H_
