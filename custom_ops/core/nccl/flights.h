// Collectives that a GPU still works on: what has been asked for is in its
// streams, and nothing more is to be done but to see it end.
//
// They end in the order in which they began. A thread looks at the first one;
// whoever waits anyway may look, too (Poll), which saves a hand-over between
// threads. While a collective takes its time, `watch` is asked now and then
// whether something has gone wrong.
//
// That an event has happened does not say that the work before it was done:
// what an abort makes leave its stream lets the events behind it happen. So
// `judge` is asked after the event was seen, never before.
#ifndef TFRING_CORE_NCCL_FLIGHTS_H_
#define TFRING_CORE_NCCL_FLIGHTS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/gpu.h"
#include "custom_ops/core/schedule/operation.h"
#include "custom_ops/core/schedule/timing.h"

namespace tfring {

struct Flight {
  std::unique_ptr<Operation> operation;
  CudaEvent done = nullptr;  // behind the last of its work
  uint64_t index = 0;        // in the log
  bool uses_nccl = false;
  std::vector<PinnedBuffer> buffers;  // that it reads or writes
  Moments moments;
  int last = -1;  // place of the rank that was waited for
};

class Flights {
 public:
  // An error: the flight has failed, and what was in its streams has been told
  // to end.
  using Watch = std::function<Status(const Flight&)>;
  // Asked when a flight's event has happened: an error if its work was made to
  // end early, so that its results are not there.
  using Judge = std::function<Status(const Flight&)>;
  using Land = std::function<void(Flight*, const Status&)>;

  Flights(Gpu* gpu, Watch watch, Judge judge, Land land);
  ~Flights();  // waits until all have landed
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  void Add(Flight flight);
  // Looks once at the first, and lands it if it is done: then true.
  bool Poll();
  void Drain();
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  // Those that hold pinned memory.
  uint64_t pinning() const { return pinning_.load(std::memory_order_acquire); }

 private:
  // One thread at a time looks; the others have something better to do.
  bool TryLook();
  void ThreadMain();
  bool LookAt(bool watch);
  Status AwaitEnd(const Flight& flight, const Status& status);
  void LandFirst(const Status& status);

  Gpu* const gpu_;
  const Watch watch_;
  const Judge judge_;
  const Land land_;
  std::atomic<uint64_t> count_{0};  // in the air
  std::atomic<uint64_t> pinning_{0};
  std::atomic<bool> looking_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Flight> flights_;  // guarded by mutex_
  bool stopping_ = false;       // guarded by mutex_
  std::thread thread_;
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_FLIGHTS_H_
