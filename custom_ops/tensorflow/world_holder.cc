#include "custom_ops/tensorflow/world_holder.h"

#include <atomic>
#include <cstdio>
#include <utility>

#include "custom_ops/core/common/condition.h"
#include "custom_ops/tensorflow/adapter.h"

namespace tfring {

WorldHolder::WorldHolder(std::string reason) : reason_(std::move(reason)) {}

void WorldHolder::Set(tfr_world* world, std::string reason) {
  std::unique_lock<std::mutex> lock(mutex_);
  world_ = world;
  reason_ = std::move(reason);
  Await(&idle_, &lock, [this] { return using_ == 0; });
}

tfr_world* WorldHolder::Begin(tfr_error* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++using_;
  if (world_ == nullptr && error != nullptr) {
    error->code = TFR_FAILED_PRECONDITION;
    std::snprintf(error->text, sizeof(error->text), "%s", reason_.c_str());
  }
  return world_;
}

int WorldHolder::End(int code) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--using_ == 0) idle_.notify_all();
  return code;
}

int WorldHolder::With(const std::function<int(tfr_world*)>& use,
                      tfr_error* error) {
  tfr_world* const world = Begin(error);
  return End(world == nullptr ? TFR_FAILED_PRECONDITION : use(world));
}

int WorldHolder::WithAny(const std::function<int(tfr_world*)>& use) {
  return End(use(Begin(nullptr)));
}

int WorldHolder::Submit(const tfr_request& request, tfr_error* error) {
  return With(
      [&](tfr_world* world) { return tfr_submit(world, &request, error); },
      error);
}

namespace {

std::atomic<WorldHolder*>& HolderSlot() {
  // Leaked on purpose: kernels may still run while the process exits.
  static std::atomic<WorldHolder*> slot{new WorldHolder(
      "tfring has not been initialized; call tfring.init() first")};
  return slot;
}

}  // namespace

WorldHolder& CurrentWorld() { return *HolderSlot().load(); }

}  // namespace tfring

extern "C" void tfring_tf_set_world(tfr_world* world, const char* reason) {
  tfring::CurrentWorld().Set(world, reason == nullptr ? "" : reason);
}

extern "C" int tfring_tf_submit(const tfr_request* request, tfr_error* error) {
  return tfring::CurrentWorld().Submit(*request, error);
}

extern "C" int64_t tfring_tf_set_size(int64_t process_set) {
  int32_t size = 0;
  int32_t rank;
  tfr_error error;
  tfring::CurrentWorld().With(
      [&](tfr_world* world) {
        return tfr_process_set_info(world, process_set, &size, &rank, &error);
      },
      &error);
  return size;
}

extern "C" void tfring_tf_after_fork(const char* reason) {
  // Another thread of the parent may have held the old holder's mutex, which
  // no thread of the child will ever release: leave it behind.
  tfring::HolderSlot().store(
      new tfring::WorldHolder(reason == nullptr ? "" : reason));
}
