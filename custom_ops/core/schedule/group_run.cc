// What a place of the log runs.
#include "custom_ops/core/collectives/adasum.h"
#include "custom_ops/core/collectives/allreduce.h"
#include "custom_ops/core/collectives/alltoall.h"
#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/collectives/mismatch.h"
#include "custom_ops/core/collectives/reducescatter.h"
#include "custom_ops/core/schedule/group.h"

namespace tfring {

Status Group::RunEntry(const LogEntry& entry, Operation* operation) {
  if (WithJoined(entry.verdict)) return RunWithJoined(entry.verdict, operation);
  if (entry.verdict == Verdict::kJoin) {
    EndJoin(entry.uid, operation);
    return Status::Ok();
  }
  // A fault meets no mismatch in a world of one.
  if (entry.verdict == Verdict::kMismatch || !operation->fault.empty()) {
    return Mismatch(&plane_, *operation);
  }
  return RunAlike(operation);
}

// What all ranks that take part have described alike.
Status Group::RunAlike(Operation* operation) {
  return operation->device > 0 ? device_.Run(operation) : RunOnHost(operation);
}

Status Group::RunOnHost(Operation* operation) {
  if (operation->run) return operation->run(&plane_);
  switch (operation->kind) {
    case TFR_ALLREDUCE:
      if (operation->reduce_op == TFR_ADASUM) {
        return Adasum(&plane_, *operation);
      }
      return Allreduce(&plane_, *operation);
    case TFR_ALLGATHER:
      return Allgather(&plane_, *operation);
    case TFR_BROADCAST:
      return Broadcast(&plane_, *operation);
    case TFR_REDUCESCATTER:
      return Reducescatter(&plane_, *operation);
    case TFR_ALLTOALL:
      return Alltoall(&plane_, *operation);
    default:
      return Status::Ok();  // a barrier is the agreement itself
  }
}

}  // namespace tfring
