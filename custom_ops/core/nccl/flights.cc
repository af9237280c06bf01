#include "custom_ops/core/nccl/flights.h"

#include <utility>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/condition.h"
#include "custom_ops/core/common/thread.h"
#include "custom_ops/core/nccl/backoff.h"

namespace tfring {
namespace {

// How often it is asked whether something has gone wrong.
constexpr int64_t kWatchNs = 500'000;
// How long the GPU may take to end what was aborted. After that the buffers are
// given back although it might still write them.
constexpr double kEndSeconds = 10.0;

}  // namespace

Flights::Flights(Gpu* gpu, Watch watch, Judge judge, Land land)
    : gpu_(gpu),
      watch_(std::move(watch)),
      judge_(std::move(judge)),
      land_(std::move(land)) {
  thread_ = StartThread("tfring-gpu", [this] { ThreadMain(); });
}

Flights::~Flights() {
  Drain();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Flights::Add(Flight flight) {
  if (!flight.buffers.empty()) {
    pinning_.fetch_add(1, std::memory_order_acq_rel);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    flights_.push_back(std::move(flight));
    count_.fetch_add(1, std::memory_order_acq_rel);
  }
  changed_.notify_all();
}

void Flights::Drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  Await(&changed_, &lock, [this] { return count() == 0; });
}

bool Flights::TryLook() {
  return !looking_.exchange(true, std::memory_order_acquire);
}

bool Flights::Poll() {
  if (count() == 0 || !TryLook()) return false;
  const bool landed = LookAt(/*watch=*/false);
  looking_.store(false, std::memory_order_release);
  return landed;
}

void Flights::ThreadMain() {
  int64_t watched = NowNs();
  std::unique_ptr<Backoff> backoff;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (flights_.empty()) backoff.reset();
      Await(&changed_, &lock,
            [this] { return stopping_ || !flights_.empty(); });
      if (flights_.empty()) return;
    }
    if (backoff == nullptr) backoff = std::make_unique<Backoff>();
    bool landed = false;
    if (TryLook()) {
      const bool watch = NowNs() - watched >= kWatchNs;
      if (watch) watched = NowNs();
      landed = LookAt(watch);
      looking_.store(false, std::memory_order_release);
    }
    if (landed) {
      backoff.reset();
    } else {
      backoff->Pause();
    }
  }
}

bool Flights::LookAt(bool watch) {
  const Flight* first = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (flights_.empty()) return false;
    first = &flights_.front();  // stays: only whoever looks removes it
  }
  const ScopedDevice current(gpu_->cuda(), gpu_->device());
  const int state = gpu_->cuda().EventQuery(first->done);
  if (state == kCudaSuccess) {
    LandFirst(judge_(*first));
    return true;
  }
  Status status;
  if (state != kCudaNotReady) {
    status = gpu_->cuda().Check(state, "a GPU's work");
  } else if (watch) {
    status = watch_(*first);
    if (!status.ok()) status = AwaitEnd(*first, status);
  }
  if (status.ok()) return false;
  LandFirst(status);
  return true;
}

Status Flights::AwaitEnd(const Flight& flight, const Status& status) {
  const Deadline deadline = Deadline::After(kEndSeconds);
  Backoff backoff;
  while (gpu_->cuda().EventQuery(flight.done) == kCudaNotReady) {
    if (deadline.expired()) {
      gpu_->GiveUp();
      return Status(status.code(),
                    StrCat(status.message(), " (and the GPU has not ended it ",
                           kEndSeconds, " s later)"));
    }
    backoff.Pause();
  }
  return status;
}

void Flights::LandFirst(const Status& status) {
  Flight flight;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    flight = std::move(flights_.front());
    flights_.pop_front();
  }
  gpu_->Return(flight.done);
  if (!flight.buffers.empty()) {
    flight.buffers.clear();
    pinning_.fetch_sub(1, std::memory_order_acq_rel);
  }
  land_(&flight, status);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    count_.fetch_sub(1, std::memory_order_acq_rel);
  }
  changed_.notify_all();
}

}  // namespace tfring
