#include "custom_ops/core/schedule/failure.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace tfring {

Failure::Failure() : event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Failure::~Failure() {
  if (event_fd_ >= 0) close(event_fd_);
}

bool Failure::Abort(Status status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!abort_status_.ok()) return false;
    abort_status_ = std::move(status);
    limit_.store(0, std::memory_order_seq_cst);
  }
  Signal();
  return true;
}

void Failure::Leave(Status status, uint64_t executed) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (executed >= limit()) return;
    leave_status_ = std::move(status);
    limit_.store(executed, std::memory_order_seq_cst);
  }
  Signal();
}

Status Failure::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return abort_status_.ok() ? leave_status_ : abort_status_;
}

void Failure::OnChange(std::function<void()> wake) {
  std::lock_guard<std::mutex> lock(wake_mutex_);
  wake_ = std::move(wake);
}

void Failure::Signal() {
  const uint64_t one = 1;
  // Only a full counter makes this fail, and then it is readable already.
  static_cast<void>(write(event_fd_, &one, sizeof(one)) == sizeof(one));
  std::lock_guard<std::mutex> lock(wake_mutex_);
  if (wake_) wake_();
}

void Failures::Add(Failure* failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  groups_.insert(failure);
  if (!status_.ok()) failure->Abort(status_);
}

void Failures::Remove(Failure* failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  groups_.erase(failure);
}

bool Failures::Abort(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!status_.ok()) return false;
  status_ = status;
  for (Failure* failure : groups_) failure->Abort(status);
  return true;
}

bool Failures::aborted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !status_.ok();
}

}  // namespace tfring
