// Allreduce over several hosts without NCCL between them: NCCL adds up inside
// each host, to its first rank; these ranks exchange their sums as CPU tensors
// do, through pinned memory; NCCL spreads the result inside each host. Only one
// copy per host passes the bus to host memory, in place of one per rank.
//
// For the engine the other ranks of a host have joined in this: they help with
// its memory, but have nothing to add.
#include <set>
#include <utility>

#include "custom_ops/core/nccl/device_plane.h"
#include "custom_ops/core/nccl/staging.h"

namespace tfring {
namespace {

std::set<int> AllButLeaders(const GroupMembers& members) {
  std::set<int> places;
  for (const std::vector<int>& here : members.on_host) {
    places.insert(here.begin() + 1, here.end());
  }
  return places;
}

}  // namespace

Status DevicePlane::RunOverTcp(Operation* operation) {
  std::vector<int> ops;
  TFR_RETURN_IF_ERROR(ReduceOps(*operation, &ops));
  TFR_RETURN_IF_ERROR(
      Fatal(gpu_->Wait(gpu_->collectives(), operation->ready.get())));
  TFR_RETURN_IF_ERROR(AddUpHere(operation, ops));
  plane_->SetJoined(AllButLeaders(plane_->members()));
  const Status exchanged = Fatal(ExchangeOverTcp(operation));
  plane_->SetJoined({});
  TFR_RETURN_IF_ERROR(exchanged);
  TFR_RETURN_IF_ERROR(SpreadHere(operation));
  return Underway(gpu_->collectives(), true, std::move(next_.buffers));
}

Status DevicePlane::AddUpHere(Operation* operation,
                              const std::vector<int>& ops) {
  return Issue([&](NcclComm comm) {
    int result = kNcclSuccess;
    for (size_t t = 0; t < ops.size() && !NcclFailed(result); ++t) {
      const OperationTensor& tensor = operation->tensors[t];
      if (tensor.count == 0) continue;
      result = nccl_.Reduce(tensor.input, tensor.output, tensor.count,
                            NcclDtype(tensor.dtype), ops[t], 0, comm,
                            gpu_->collectives());
    }
    return result;
  });
}

// The sums of the hosts, which are scaled by now.
Status DevicePlane::ExchangeOverTcp(Operation* operation) {
  Operation sums(*operation);
  sums.device = 0;
  if (sums.reduce_op == TFR_AVERAGE) sums.reduce_op = TFR_SUM;
  sums.prescale = 1.0;
  sums.postscale = 1.0;
  const auto cut = [&] {
    return CutOperation(sums, ways_.piece_bytes,
                        plane_->members().on_host.size());
  };
  if (!plane_->members().leads()) {
    for (OperationTensor& tensor : sums.tensors) {
      tensor.input = nullptr;
      tensor.output = nullptr;
    }
    for (Operation& piece : cut()) {
      TFR_RETURN_IF_ERROR(hooks_.run_host(&piece));
    }
    return Status::Ok();
  }
  // In place on the GPU, in the order of its stream.
  for (OperationTensor& tensor : sums.tensors) tensor.input = tensor.output;
  TFR_RETURN_IF_ERROR(AwaitPinnedRoom());
  TFR_RETURN_IF_ERROR(MarkReady(gpu_->collectives(), &sums));
  Staging staging(gpu_.get(), cut());
  const Status status =
      staging.Run([this](Operation* host) { return hooks_.run_host(host); },
                  [this](CudaEvent event) { return AwaitEvent(event, true); });
  TFR_RETURN_IF_ERROR(status);
  next_.buffers = staging.TakeBuffers();
  return gpu_->WaitFor(gpu_->collectives(), gpu_->from_host());
}

Status DevicePlane::SpreadHere(Operation* operation) {
  return Issue([&](NcclComm comm) {
    int result = kNcclSuccess;
    for (const OperationTensor& tensor : operation->tensors) {
      if (tensor.bytes == 0 || NcclFailed(result)) continue;
      result = nccl_.Broadcast(tensor.output, tensor.output, tensor.bytes,
                               kNcclInt8, 0, comm, gpu_->collectives());
    }
    return result;
  });
}

}  // namespace tfring
