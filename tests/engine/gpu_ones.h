// Allreduces of ones in a GPU's memory.
#ifndef TFRING_TESTS_ENGINE_GPU_ONES_H_
#define TFRING_TESTS_ENGINE_GPU_ONES_H_

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpu_job.h"

namespace tfring_test {

// An allreduce of ones, in place.
struct Ones {
  const GpuBuffer buffer;
  Call call;

  Ones(const Double& gpu, int device, const std::string& name = "ones")
      : buffer(gpu, Filled()) {
    call.name = name;
    call.tensors = {{{64}, TFR_INT32, buffer.data(), buffer.data()}};
    call.device = device;
  }
  int32_t Value() const {
    const Bytes bytes = buffer.Get();
    int32_t value = 0;
    std::memcpy(&value, bytes.data(), 4);
    return value;
  }
  // The code; `*text` is the error's.
  int Run(tfr_world* world, std::string* text) const {
    tfr_error error = {};
    const int code = call.Run(world, &error);
    *text = error.text;
    return code;
  }

 private:
  static Bytes Filled() {
    Bytes bytes(256);
    for (size_t i = 0; i < 64; ++i) bytes[4 * i] = 1;
    return bytes;
  }
};

// Several under way at once.
class ManyOnes {
 public:
  ManyOnes(const Double& gpu, int device, int count,
           const std::string& name = "late")
      : ends_(static_cast<size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      all_.push_back(std::make_unique<Ones>(gpu, device, name));
      all_.back()->call.name += std::to_string(i);
      all_.back()->call.done = &Ends::Done;
      all_.back()->call.user = &ends_[static_cast<size_t>(i)];
    }
  }

  void Submit(tfr_world* world) {
    for (size_t i = 0; i < all_.size(); ++i) {
      tfr_error error = {};
      if (all_[i]->call.Submit(world, &error) != TFR_OK) {
        Ends::Done(&ends_[i], &error);
      }
    }
  }
  void Await() const {
    for (const Ends& one : ends_) one.Await(1);
  }
  int failed() const {
    int failed = 0;
    for (const Ends& one : ends_) failed += one.failed;
    return failed;
  }
  // Those that say that they are done, and hold something else than `value`.
  int wrong(int32_t value) const {
    int wrong = 0;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (ends_[i].failed == 0 && all_[i]->Value() != value) ++wrong;
    }
    return wrong;
  }
  const std::string& text() const { return ends_[0].text; }  // the first's

 private:
  std::vector<std::unique_ptr<Ones>> all_;
  std::vector<Ends> ends_;
};

// Until NCCL has been asked for `calls`, by the ranks of this process.
inline void AwaitNcclCalls(const Double& gpu, int64_t calls) {
  const auto deadline = tfring::Deadline::After(30);
  while (gpu.nccl_calls() < calls && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(gpu.nccl_calls(), calls);
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_GPU_ONES_H_
