#include "custom_ops/core/nccl/communicator.h"

#include "custom_ops/core/common/half_scalar.h"
#include "custom_ops/core/nccl/backoff.h"

namespace tfring {
namespace {

// A factor as one element of the dtype.
union Scalar {
  double float64;
  float float32;
  uint16_t half;
};

Scalar ScalarOf(int dtype, double factor) {
  Scalar scalar = {};
  const auto value = static_cast<float>(factor);
  switch (dtype) {
    case kNcclFloat64:
      scalar.float64 = factor;
      break;
    case kNcclFloat16:
      scalar.half = half_scalar::ToFloat16(value).bits;
      break;
    case kNcclBfloat16:
      scalar.half = half_scalar::ToBFloat16(value).bits;
      break;
    default:
      scalar.float32 = value;
  }
  return scalar;
}

// So many different factors are a caller's that changes it at every step.
constexpr size_t kMostScales = 64;

}  // namespace

Status Communicator::Aborted() const {
  return Unavailable("its NCCL communicator has been aborted");
}

Status Communicator::Check(int result) {
  if (!NcclFailed(result)) return Status::Ok();
  const char* text = nccl_.GetErrorString(result);
  const char* last =
      nccl_.GetLastError == nullptr ? nullptr : nccl_.GetLastError(comm_);
  const bool more = last != nullptr && last[0] != '\0';
  return Unavailable(StrCat("NCCL: ", text == nullptr ? "?" : text,
                            " (ncclResult ", result, ")", more ? ": " : "",
                            more ? last : ""));
}

Status Communicator::AsyncError() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return Aborted();
  int error = kNcclSuccess;
  const int asked = nccl_.CommGetAsyncError(comm_, &error);
  return Check(asked != kNcclSuccess ? asked : error);
}

Status Communicator::AwaitDone(Deadline deadline,
                               const Interrupted& interrupted) {
  Backoff backoff;
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (comm_ == nullptr) return Aborted();
      int error = kNcclSuccess;
      const int asked = nccl_.CommGetAsyncError(comm_, &error);
      TFR_RETURN_IF_ERROR(Check(asked));
      if (error != kNcclInProgress) return Check(error);
    }
    TFR_RETURN_IF_ERROR(interrupted());
    if (deadline.expired()) {
      return DeadlineExceeded("NCCL was not done in time");
    }
    backoff.Pause();
  }
}

Status Communicator::Init(const NcclUniqueId& id, int rank, int size,
                          Deadline deadline, const Interrupted& interrupted) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    NcclConfig config;
    config.blocking = 0;
    const int result =
        nccl_.CommInitRankConfig(&comm_, size, id, rank, &config);
    TFR_RETURN_IF_ERROR(Check(result));
  }
  return AwaitDone(deadline, interrupted);
}

Status Communicator::Issue(const std::function<int(NcclComm)>& f,
                           Deadline deadline, const Interrupted& interrupted) {
  bool in_progress = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return Aborted();
    TFR_RETURN_IF_ERROR(Check(nccl_.GroupStart()));
    const int called = f(comm_);
    // A group that has begun must end, whatever happened in it.
    const int ended = nccl_.GroupEnd();
    TFR_RETURN_IF_ERROR(Check(called));
    TFR_RETURN_IF_ERROR(Check(ended));
    in_progress = ended == kNcclInProgress;
  }
  return in_progress ? AwaitDone(deadline, interrupted) : Status::Ok();
}

// NCCL has read an operation when a call that uses it is in the stream.
void Communicator::ForgetScales() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr || scales_.size() < kMostScales) return;
  for (const auto& [key, op] : scales_) nccl_.RedOpDestroy(op, comm_);
  scales_.clear();
}

Status Communicator::PreMulSum(int dtype, double factor, int* op,
                               Deadline deadline,
                               const Interrupted& interrupted) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return Aborted();
    const auto known = scales_.find({dtype, factor});
    if (known != scales_.end()) {
      *op = known->second;
      return Status::Ok();
    }
    if (nccl_.RedOpCreatePreMulSum == nullptr ||
        nccl_.RedOpDestroy == nullptr) {
      return FailedPrecondition("this NCCL cannot scale what it adds up");
    }
    Scalar scalar = ScalarOf(dtype, factor);
    TFR_RETURN_IF_ERROR(Check(nccl_.RedOpCreatePreMulSum(
        op, &scalar, dtype, kNcclScalarHostImmediate, comm_)));
    scales_[{dtype, factor}] = *op;
  }
  return AwaitDone(deadline, interrupted);
}

void Communicator::Finalize(Deadline deadline, const Interrupted& interrupted) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return;
    for (const auto& [key, op] : scales_) nccl_.RedOpDestroy(op, comm_);
    scales_.clear();
    if (!Check(nccl_.CommFinalize(comm_)).ok()) deadline = Deadline::After(0);
  }
  if (!AwaitDone(deadline, interrupted).ok()) return Abort();
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ != nullptr) nccl_.CommDestroy(comm_);
  comm_ = nullptr;
}

void Communicator::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ != nullptr) {
    aborted_.store(true, std::memory_order_seq_cst);
    nccl_.CommAbort(comm_);
  }
  comm_ = nullptr;
  scales_.clear();
}

}  // namespace tfring
