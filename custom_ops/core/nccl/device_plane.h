// The data plane for tensors in the memory of GPUs.
//
// The engine's agreement and log give the order: NCCL needs its calls in one
// order on all ranks, and the log is one. A rank's executor comes to the
// collective, has its stream wait for the caller's (an event recorded when the
// request was submitted), asks NCCL for the calls, marks their end by an event
// and goes on to the next entry. So several collectives are under way, beside
// the caller's own kernels. Flights (flights.h) see them end and call `done`.
//
// How tensors travel is agreed at the first such collective (meeting.h): by
// NCCL; by NCCL inside hosts and the engine's own way between them; or staged
// through host memory (staging.h), which also takes what NCCL cannot do.
//
// First error wins: one that this rank's GPU or NCCL reports ends the world,
// and every rank that hears of it aborts its communicator, so that kernels that
// wait for a lost peer end. NCCL often notices a lost peer first but cannot
// name it; the engine is given a moment to.
#ifndef TFRING_CORE_NCCL_DEVICE_PLANE_H_
#define TFRING_CORE_NCCL_DEVICE_PLANE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/communicator.h"
#include "custom_ops/core/nccl/flights.h"
#include "custom_ops/core/nccl/gpu.h"
#include "custom_ops/core/nccl/meeting.h"
#include "custom_ops/core/nccl/nccl_calls.h"
#include "custom_ops/core/nccl/staging.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

struct GpuOptions {
  std::string cudart_library;  // empty: found by name
  std::string nccl_library;
  int32_t data = TFR_GPU_AUTO;  // tfr_gpu_data
  bool hosts_by_tcp = false;
  double start_timeout_s = 30;      // of communicators
  double fail_after_s = 300;        // of a collective under way; 0 = never
  uint64_t piece_bytes = 4u << 20;  // of what is staged, see staging.h
};

class DevicePlane {
 public:
  struct Hooks {
    // Runs an operation whose tensors are in host memory.
    std::function<Status(Operation*)> run_host;
    // No collective can finish any more.
    std::function<void(const Status&)> abort;
    // One that had departed has ended; from any thread.
    std::function<void(Flight*, const Status&)> landed;
  };

  DevicePlane(DataPlane* plane, const Failure* failure,
              const GpuOptions& options, Hooks hooks);
  ~DevicePlane();
  DevicePlane(const DevicePlane&) = delete;
  DevicePlane& operator=(const DevicePlane&) = delete;

  // At submission, from the caller's thread: marks where in the caller's stream
  // the request stands. What is wrong becomes the operation's fault.
  void Prepare(Operation* operation);

  // At its place of the log, on the executor. When it returns OK the operation
  // is under way and must Depart.
  Status Run(Operation* operation);
  // Its work ends later, and it is then given to `landed`.
  void Depart(std::unique_ptr<Operation> operation, const Moments& moments,
              int last);

  // Lands what has ended. Costs next to nothing where nothing is under way.
  bool Poll() {
    Flights* const flights = flights_.load(std::memory_order_acquire);
    return flights != nullptr && flights->Poll();
  }
  bool idle() const {
    const Flights* const flights = flights_.load(std::memory_order_acquire);
    return flights == nullptr || flights->count() == 0;
  }
  // Waits until nothing is under way.
  void Drain() {
    Flights* const flights = flights_.load(std::memory_order_acquire);
    if (flights != nullptr) flights->Drain();
  }
  uint64_t pinned_bytes();

 private:
  Status Open(int device);
  Status Mark(Operation* operation);
  Status MarkReady(CudaStream stream, Operation* operation);

  Status Meet();
  GpuWord Word();
  Status Connect(const std::vector<GpuWord>& words);
  Status AgreeOnConnection(const Status& mine);
  void Warn(const std::string& why) const;

  bool Joined() const { return !plane_->joined().empty(); }
  Status RunNccl(Operation* operation);
  Status RunOverTcp(Operation* operation);
  Status RunStaged(Operation* operation);
  Status AwaitRoom();
  Status AwaitPinnedRoom();
  Status AddUpHere(Operation* operation, const std::vector<int>& ops);
  Status SpreadHere(Operation* operation);
  Status ExchangeOverTcp(Operation* operation);
  Status ReduceOps(const Operation& operation, std::vector<int>* ops);
  Status Issue(const std::function<int(NcclComm)>& f);
  Status Underway(CudaStream stream, bool uses_nccl,
                  std::vector<PinnedBuffer> buffers);

  // While something is awaited on the executor; and of what is under way.
  Status Interrupted() const;
  Status AwaitEvent(CudaEvent event, bool uses_nccl);
  Status Watch(const Flight& flight);
  Status Judge(bool uses_nccl) const;
  void AbortNccl(bool executor);
  std::shared_ptr<Communicator> communicator() const;
  void SetCommunicator(std::shared_ptr<Communicator> communicator);
  Status Trouble(const Operation* operation, uint64_t index, bool uses_nccl,
                 int64_t began_ns);
  Status Explain(const Operation& operation, const Status& status);
  Status Failed(const Operation* operation, const Status& status);
  Deadline FailDeadline() const;

  DataPlane* const plane_;
  const Failure* const failure_;
  const GpuOptions options_;
  const Hooks hooks_;

  std::mutex mutex_;          // of Open()
  Status opened_;             // guarded by mutex_
  std::shared_ptr<Gpu> gpu_;  // set once, under mutex_; also of events

  // The executor's.
  bool met_ = false;
  Status meeting_;  // how it went
  GpuWays ways_;
  NcclApi nccl_ = {};
  Flight next_;  // what Run() has begun

  // The executor sets it, once it has met the other ranks; whoever watches what
  // is under way, which may have been staged before, reads it.
  mutable std::mutex communicator_mutex_;
  std::shared_ptr<Communicator>
      communicator_;  // guarded by communicator_mutex_
  std::atomic<int64_t> trouble_since_{0};
  std::unique_ptr<Flights> flights_owner_;
  std::atomic<Flights*> flights_{nullptr};
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_DEVICE_PLANE_H_
