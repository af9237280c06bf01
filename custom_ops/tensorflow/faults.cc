// Announces calls whose arguments are wrong. Nobody waits for the answer: the
// caller raises its own error at once.
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "custom_ops/tensorflow/adapter.h"
#include "custom_ops/tensorflow/world_holder.h"

namespace tfring {
namespace {

// Faults that the peers have not met yet.
class PendingFaults {
 public:
  void Add() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
  }
  void Remove() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  void Wait(std::chrono::duration<double> limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    none_.wait_for(lock, limit, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int count_ = 0;
};

PendingFaults& Pending() {
  // Leaked on purpose: the engine may still call back while the process exits.
  static auto* pending = new PendingFaults;
  return *pending;
}

}  // namespace
}  // namespace tfring

extern "C" void tfring_tf_announce_fault(int32_t kind, const char* name,
                                         int64_t process_set,
                                         const char* text) {
  tfr_request request = {};
  request.kind = kind;
  request.name = name;
  request.process_set = process_set;
  request.prescale = 1.0;
  request.postscale = 1.0;
  request.fault = text;
  request.done = [](void*, const tfr_error*) { tfring::Pending().Remove(); };
  tfr_error error;
  tfring::Pending().Add();
  if (tfring::CurrentWorld().Submit(request, &error) != TFR_OK) {
    tfring::Pending().Remove();
  }
}

extern "C" void tfring_tf_wait_for_faults(double timeout_s) {
  tfring::Pending().Wait(std::chrono::duration<double>(timeout_s));
}
