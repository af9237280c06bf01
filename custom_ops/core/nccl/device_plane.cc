#include "custom_ops/core/nccl/device_plane.h"

#include <chrono>
#include <thread>
#include <utility>

#include "custom_ops/core/nccl/backoff.h"

namespace tfring {
namespace {

// More under way than this brings nothing, and a launch could block in CUDA.
constexpr uint64_t kMostFlights = 128;
// Of staged ones, each of which holds pinned memory until it ends.
constexpr uint64_t kMostStaged = 4;
// How long leaving waits for the other ranks' last kernels.
constexpr double kFinalizeSeconds = 2.0;
// How long the engine is given to name a lost peer.
constexpr int64_t kGraceNs = 1'000'000'000;

}  // namespace

DevicePlane::DevicePlane(DataPlane* plane, const Failure* failure,
                         const GpuOptions& options, Hooks hooks)
    : plane_(plane),
      failure_(failure),
      options_(options),
      hooks_(std::move(hooks)) {}

DevicePlane::~DevicePlane() {
  flights_.store(nullptr, std::memory_order_release);
  flights_owner_.reset();
  const std::shared_ptr<Communicator> communicator = this->communicator();
  if (communicator == nullptr) return;
  const ScopedDevice current(gpu_->cuda(), gpu_->device());
  if (!failure_->aborted()) {
    communicator->Finalize(Deadline::After(kFinalizeSeconds), [this] {
      return failure_->aborted() ? failure_->status() : Status::Ok();
    });
  }
  communicator->Abort();
}

std::shared_ptr<Communicator> DevicePlane::communicator() const {
  std::lock_guard<std::mutex> lock(communicator_mutex_);
  return communicator_;
}

void DevicePlane::SetCommunicator(std::shared_ptr<Communicator> communicator) {
  std::lock_guard<std::mutex> lock(communicator_mutex_);
  communicator_.swap(communicator);  // the old one ends without the lock
}

// --- at submission ----------------------------------------------------------

void DevicePlane::Prepare(Operation* operation) {
  if (operation->device == 0 || !operation->fault.empty()) return;
  const Status status = Mark(operation);
  if (!status.ok()) operation->SetFault(status.message());
}

Status DevicePlane::Mark(Operation* operation) {
  const int device = operation->device - 1;
  TFR_RETURN_IF_ERROR(Open(device));
  if (gpu_->device() != device) {
    return InvalidArgument(
        StrCat("its tensors are on CUDA device ", device,
               ", but those of this process set's first collective were on ",
               gpu_->device(), "; a rank uses one GPU (tfring.pin_gpu())"));
  }
  const ScopedDevice current(gpu_->cuda(), device);
  TFR_RETURN_IF_ERROR(current.status());
  return MarkReady(operation->stream, operation);
}

Status DevicePlane::MarkReady(CudaStream stream, Operation* operation) {
  CudaEvent event = nullptr;
  const Status status = gpu_->Mark(stream, &event);
  operation->ready = std::shared_ptr<void>(
      event, [gpu = gpu_](CudaEvent used) { gpu->Return(used); });
  return status;
}

Status DevicePlane::Open(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (gpu_ != nullptr || !opened_.ok()) return opened_;
  std::unique_ptr<Gpu> gpu;
  opened_ = Gpu::Open(options_.cudart_library, device, &gpu);
  gpu_ = std::move(gpu);
  return opened_;
}

uint64_t DevicePlane::pinned_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return gpu_ == nullptr ? 0 : gpu_->pinned_bytes();
}

// --- at its place of the log ------------------------------------------------

Status DevicePlane::Run(Operation* operation) {
  const ScopedDevice current(gpu_->cuda(), gpu_->device());
  TFR_RETURN_IF_ERROR(Fatal(current.status()));
  gpu_->Trim();
  next_ = Flight();
  next_.index = plane_->index();
  if (flights_owner_ == nullptr) {
    flights_owner_ = std::make_unique<Flights>(
        gpu_.get(), [this](const Flight& flight) { return Watch(flight); },
        [this](const Flight& flight) { return Judge(flight.uses_nccl); },
        [this](Flight* flight, const Status& status) {
          hooks_.landed(flight, status.ok()
                                    ? status
                                    : Failed(flight->operation.get(), status));
        });
    flights_.store(flights_owner_.get(), std::memory_order_release);
  }
  // Ranks that have joined are not there to meet, and have no GPU's tensors.
  if (!Joined()) TFR_RETURN_IF_ERROR(Meet());
  Status status;
  if (Joined() || !ways_.nccl ||
      !NcclTakes(*operation, plane_->members().size, ways_.scales)) {
    status = RunStaged(operation);
  } else if (!ways_.hosts_by_tcp) {
    status = RunNccl(operation);
  } else if (operation->kind == TFR_ALLREDUCE) {
    status = RunOverTcp(operation);
  } else {
    status = RunStaged(operation);
  }
  operation->ready.reset();
  return Explain(*operation, status);
}

void DevicePlane::Depart(std::unique_ptr<Operation> operation,
                         const Moments& moments, int last) {
  next_.operation = std::move(operation);
  next_.moments = moments;
  next_.last = last;
  flights_owner_->Add(std::move(next_));
}

// What is in `stream` now is the collective.
Status DevicePlane::Underway(CudaStream stream, bool uses_nccl,
                             std::vector<PinnedBuffer> buffers) {
  TFR_RETURN_IF_ERROR(Fatal(gpu_->Mark(stream, &next_.done)));
  next_.uses_nccl = uses_nccl;
  next_.buffers = std::move(buffers);
  return Status::Ok();
}

Status DevicePlane::Issue(const std::function<int(NcclComm)>& f) {
  TFR_RETURN_IF_ERROR(AwaitRoom());
  return communicator()->Issue(f, FailDeadline(),
                               [this] { return Interrupted(); });
}

Status DevicePlane::AwaitRoom() {
  Backoff backoff;
  while (flights_owner_->count() >= kMostFlights) {
    TFR_RETURN_IF_ERROR(Interrupted());
    backoff.Pause();
  }
  return Status::Ok();
}

Status DevicePlane::AwaitPinnedRoom() {
  Backoff backoff;
  while (flights_owner_->pinning() >= kMostStaged) {
    TFR_RETURN_IF_ERROR(Interrupted());
    backoff.Pause();
  }
  return Status::Ok();
}

Status DevicePlane::ReduceOps(const Operation& operation,
                              std::vector<int>* ops) {
  ops->assign(operation.tensors.size(), NcclReduceOp(operation.reduce_op));
  const bool reduces =
      operation.kind == TFR_ALLREDUCE || operation.kind == TFR_REDUCESCATTER;
  const double factor = FactorOf(operation, plane_->members().size);
  if (!reduces || factor == 1.0) return Status::Ok();
  const std::shared_ptr<Communicator> communicator = this->communicator();
  communicator->ForgetScales();
  for (size_t t = 0; t < ops->size(); ++t) {
    TFR_RETURN_IF_ERROR(Fatal(communicator->PreMulSum(
        NcclDtype(operation.tensors[t].dtype), factor, &(*ops)[t],
        FailDeadline(), [this] { return Interrupted(); })));
  }
  return Status::Ok();
}

Status DevicePlane::RunNccl(Operation* operation) {
  NcclCalls calls;
  TFR_RETURN_IF_ERROR(PlanNcclCalls(plane_, *operation, &calls));
  std::vector<int> ops;
  TFR_RETURN_IF_ERROR(ReduceOps(*operation, &ops));
  const CudaStream stream = gpu_->collectives();
  TFR_RETURN_IF_ERROR(Fatal(gpu_->Wait(stream, operation->ready.get())));
  if (calls.allocated) {
    // Whoever had this memory before may still use it in the caller's stream.
    TFR_RETURN_IF_ERROR(Fatal(gpu_->WaitFor(stream, operation->stream)));
  }
  TFR_RETURN_IF_ERROR(Issue(
      [&](NcclComm comm) { return calls.issue(nccl_, ops, comm, stream); }));
  return Underway(stream, true, {});
}

Status DevicePlane::RunStaged(Operation* operation) {
  TFR_RETURN_IF_ERROR(AwaitRoom());
  TFR_RETURN_IF_ERROR(AwaitPinnedRoom());
  // A rank that has joined helps with the whole.
  const uint64_t bytes = Joined() ? UINT64_MAX : ways_.piece_bytes;
  Staging staging(gpu_.get(), CutOperation(*operation, bytes,
                                           plane_->members().on_host.size()));
  const Status status =
      staging.Run([this](Operation* host) { return hooks_.run_host(host); },
                  [this](CudaEvent event) { return AwaitEvent(event, false); });
  TFR_RETURN_IF_ERROR(status);
  return Underway(gpu_->from_host(), false, staging.TakeBuffers());
}

// --- while it takes its time ------------------------------------------------

Deadline DevicePlane::FailDeadline() const {
  return options_.fail_after_s > 0 ? Deadline::After(options_.fail_after_s)
                                   : Deadline::Never();
}

Status DevicePlane::Interrupted() const {
  return failure_->Stops(plane_->index()) ? failure_->status() : Status::Ok();
}

Status DevicePlane::AwaitEvent(CudaEvent event, bool uses_nccl) {
  const int64_t began = NowNs();
  Backoff backoff;
  for (;;) {
    const int state = gpu_->cuda().EventQuery(event);
    if (state != kCudaNotReady) {
      TFR_RETURN_IF_ERROR(gpu_->cuda().Check(state, "a GPU's work"));
      return Judge(uses_nccl);
    }
    TFR_RETURN_IF_ERROR(Trouble(nullptr, plane_->index(), uses_nccl, began));
    backoff.Pause();
  }
}

Status DevicePlane::Watch(const Flight& flight) {
  return Trouble(flight.operation.get(), flight.index, flight.uses_nccl,
                 flight.moments.began);
}

// Of work whose event has happened.
Status DevicePlane::Judge(bool uses_nccl) const {
  if (!uses_nccl) return Status::Ok();
  const std::shared_ptr<Communicator> communicator = this->communicator();
  return communicator->aborted() ? communicator->Aborted() : Status::Ok();
}

// What ends the wait for a collective under way; then whatever NCCL runs for it
// has been aborted.
Status DevicePlane::Trouble(const Operation* operation, uint64_t index,
                            bool uses_nccl, int64_t began_ns) {
  Status status;
  if (failure_->Stops(index)) {
    status = failure_->status();
  } else if (options_.fail_after_s > 0 &&
             NowNs() - began_ns > options_.fail_after_s * 1e9) {
    status = Failed(operation,
                    DeadlineExceeded(StrCat("did not end on the GPU within ",
                                            options_.fail_after_s, " s")));
  } else if (uses_nccl) {
    status = communicator()->AsyncError();
    if (status.ok()) return status;
    int64_t since = 0;
    trouble_since_.compare_exchange_strong(since, NowNs());
    if (since == 0 || NowNs() - since < kGraceNs) return Status::Ok();
    status = Failed(operation, status);
  }
  if (!status.ok()) AbortNccl(/*executor=*/operation == nullptr);
  return status;
}

// Where a rank has left in good order, what it has done its part of still ends:
// the executor, which is ahead of that, lets it. Flights are looked at in
// order.
void DevicePlane::AbortNccl(bool executor) {
  const std::shared_ptr<Communicator> communicator = this->communicator();
  if (communicator == nullptr) return;
  if (executor && failure_->any() && !failure_->aborted()) Drain();
  communicator->Abort();
}

// An error that ends the world says where it was met. If NCCL reports it, a
// lost peer may be the reason, which the engine is about to name.
Status DevicePlane::Explain(const Operation& operation, const Status& status) {
  const bool from_nccl = status.code() == TFR_UNAVAILABLE;
  if (!from_nccl && status.code() != TFR_INTERNAL &&
      status.code() != TFR_DEADLINE_EXCEEDED) {
    return status;
  }
  const int64_t end = NowNs() + (from_nccl ? kGraceNs : 0);
  while (!failure_->Stops(plane_->index()) && NowNs() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Status failed = Failed(&operation, status);
  AbortNccl(/*executor=*/true);
  return failed;
}

// Ends the world, unless something else has before: then that is the reason.
Status DevicePlane::Failed(const Operation* operation, const Status& status) {
  if (!failure_->aborted() && !failure_->any()) {
    hooks_.abort(Annotate(
        status,
        StrCat("rank ", plane_->members().RankAt(plane_->members().rank),
               ", GPU ", gpu_->bus_id(), operation == nullptr ? "" : ": ",
               operation == nullptr ? "" : operation->Title())));
  }
  return failure_->any() ? failure_->status() : status;
}

}  // namespace tfring
