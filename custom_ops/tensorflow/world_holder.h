// The world that the ops of this process use: none before init, none after
// shutdown, and never one that is being freed.
#ifndef TFRING_TENSORFLOW_WORLD_HOLDER_H_
#define TFRING_TENSORFLOW_WORLD_HOLDER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "custom_ops/core/tfring.h"

namespace tfring {

class WorldHolder {
 public:
  explicit WorldHolder(std::string reason);
  WorldHolder(const WorldHolder&) = delete;
  WorldHolder& operator=(const WorldHolder&) = delete;

  // Replaces the world; `reason` says why there is none when it is NULL. When
  // this returns, no With still uses the former world.
  void Set(tfr_world* world, std::string reason);

  // Calls use(world), or fails with FAILED_PRECONDITION and the reason.
  int With(const std::function<int(tfr_world*)>& use, tfr_error* error);
  // The same with NULL where there is none.
  int WithAny(const std::function<int(tfr_world*)>& use);

  // tfr_submit on the world.
  int Submit(const tfr_request& request, tfr_error* error);

 private:
  // A count rather than a shared lock: `done` may run inside tfr_submit and
  // start the next op on the same thread.
  // In use from then on, until End(), which returns the code. The error is
  // filled where there is no world.
  tfr_world* Begin(tfr_error* error);
  int End(int code);

  std::mutex mutex_;
  std::condition_variable idle_;
  tfr_world* world_ = nullptr;
  std::string reason_;
  int using_ = 0;
};

// The holder that all kernels of this process use.
WorldHolder& CurrentWorld();

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_WORLD_HOLDER_H_
