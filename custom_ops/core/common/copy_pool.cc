#include "custom_ops/core/common/copy_pool.h"

#include <system_error>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/futex.h"
#include "custom_ops/core/common/thread.h"

namespace tfring {
namespace {

// Passes follow each other within a collective; a wake-up costs about as much
// as a pass.
constexpr int64_t kSpinNs = 20000;
constexpr int64_t kSleepNs = int64_t{3600} * 1000000000;

// Waits until done(value of the word); looks first, then sleeps.
template <typename Done>
uint32_t Await(std::atomic<uint32_t>* word, Done&& done) {
  const int64_t end = NowNs() + kSpinNs;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      const uint32_t value = word->load(std::memory_order_acquire);
      if (done(value)) return value;
    }
    if (NowNs() < end) continue;
    const uint32_t value = word->load(std::memory_order_acquire);
    if (done(value)) return value;
    FutexWait(word, value, kSleepNs);
  }
}

}  // namespace

CopyPool::~CopyPool() {
  if (others_.empty()) return;
  stopping_ = true;
  pass_.fetch_add(1, std::memory_order_release);
  FutexWakeAll(&pass_);
  for (std::thread& thread : others_) thread.join();
}

bool CopyPool::Start() {
  if (threads_ == 1 || !others_.empty()) return threads_ > 1;
  try {
    for (int part = 1; part < threads_; ++part) {
      others_.push_back(
          StartThread("tfring-copy", [this, part] { ThreadMain(part); }));
    }
  } catch (const std::system_error&) {
    threads_ = static_cast<int>(others_.size()) + 1;
  }
  return threads_ > 1;
}

void CopyPool::Begin() {
  working_.store(static_cast<uint32_t>(others_.size()),
                 std::memory_order_relaxed);
  pass_.fetch_add(1, std::memory_order_release);
  FutexWakeAll(&pass_);
}

void CopyPool::AwaitOthers() {
  Await(&working_, [](uint32_t working) { return working == 0; });
}

void CopyPool::ThreadMain(int part) {
  for (uint32_t seen = 0;;) {
    seen = Await(&pass_, [seen](uint32_t pass) { return pass != seen; });
    if (stopping_) return;
    call_(function_, part);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      FutexWakeAll(&working_);
    }
  }
}

}  // namespace tfring
