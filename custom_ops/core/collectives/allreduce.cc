#include "custom_ops/core/collectives/allreduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "custom_ops/core/collectives/allreduce_hosts.h"
#include "custom_ops/core/collectives/allreduce_job.h"

namespace tfring {

AllreduceJob::AllreduceJob(DataPlane* plane, const Operation& operation)
    : plane_(plane),
      operation_(operation),
      reduction_(plane, operation),
      active_(plane->IsActive(plane->members().rank)) {
  stream_.Reserve(operation.tensors.size());
  for (const OperationTensor& tensor : operation.tensors) {
    stream_.Add(tensor.bytes);
  }
}

uint64_t AllreduceJob::steps() const {
  const uint64_t chunk = plane_->chunk_bytes();
  return (stream_.size() + chunk - 1) / chunk;
}

Range AllreduceJob::RangeOf(uint64_t step) const {
  const uint64_t begin = step * plane_->chunk_bytes();
  return {begin, std::min(begin + plane_->chunk_bytes(), stream_.size())};
}

Status AllreduceJob::CopyIn(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  LocalGroup& local = plane_->local();
  char* slot = local.slot(local.local_rank(), chunk);
  stream_.ForRange(range.begin, active_ ? range.end : range.begin,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     std::memcpy(slot + (at - range.begin),
                                 operation_.tensors[t].input + offset, bytes);
                   });
  plane_->Advance(&RankState::staged, chunk + 1);
  return Status::Ok();
}

Status AllreduceJob::ReduceDirectly(uint64_t step, uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
  const Range range = RangeOf(step);
  stream_.ForRange(range.begin, active_ ? range.end : range.begin,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     Reduce(reduction_.SpecOf(t),
                            reduction_.SourcesAt(chunk, at - range.begin,
                                                 tensor.input + offset),
                            reduction_.source_count(), tensor.output + offset,
                            bytes / tensor.element_bytes);
                   });
  plane_->Advance(&RankState::taken, chunk + 1);
  return Status::Ok();
}

Status AllreduceJob::ReduceShare(uint64_t step, uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
  const Range range = RangeOf(step);
  const auto rank = static_cast<uint64_t>(plane_->local().local_rank());
  const auto parts = static_cast<uint64_t>(plane_->local().local_size());
  char* result = plane_->local().result(chunk);
  stream_.ForRange(ShareBegin(range.begin, range.end, rank, parts),
                   ShareBegin(range.begin, range.end, rank + 1, parts),
                   [&](size_t t, uint64_t, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     Reduce(reduction_.SpecOf(t),
                            reduction_.SourcesAt(chunk, at - range.begin),
                            reduction_.source_count(),
                            result + (at - range.begin),
                            bytes / tensor.element_bytes);
                   });
  plane_->Advance(&RankState::reduced, chunk + 1);
  return Status::Ok();
}

void AllreduceJob::CopyOut(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  const char* result = plane_->local().result(chunk);
  stream_.ForRange(range.begin, active_ ? range.end : range.begin,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     std::memcpy(operation_.tensors[t].output + offset,
                                 result + (at - range.begin), bytes);
                   });
  plane_->Advance(&RankState::taken, chunk + 1);
}

namespace {

Status AllreduceDirect(DataPlane* plane, AllreduceJob* job) {
  return plane->RunPipeline(job->steps(),
                            {[job](uint64_t step, uint64_t chunk) {
                               return job->CopyIn(step, chunk);
                             },
                             [job](uint64_t step, uint64_t chunk) {
                               return job->ReduceDirectly(step, chunk);
                             }});
}

Status AllreduceShared(DataPlane* plane, AllreduceJob* job) {
  return plane->RunPipeline(
      job->steps(),
      {[job](uint64_t step, uint64_t chunk) {
         return job->CopyIn(step, chunk);
       },
       [job](uint64_t step, uint64_t chunk) {
         return job->ReduceShare(step, chunk);
       },
       [job, plane](uint64_t step, uint64_t chunk) {
         TFR_RETURN_IF_ERROR(plane->AwaitAll(&RankState::reduced, chunk + 1));
         job->CopyOut(step, chunk);
         return Status::Ok();
       }});
}

// A world of one: scales and copies.
void ReduceAlone(AllreduceJob* job) {
  const std::vector<OperationTensor>& tensors = job->operation().tensors;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const void* const source = tensors[t].input;
    Reduce(job->reduction().SpecOf(t), &source, 1, tensors[t].output,
           tensors[t].count);
  }
}

// Above this, reading every slot on every rank costs more than a second wait.
constexpr uint64_t kDirectBytes = 16 * 1024;
constexpr int kDirectRanks = 2;

}  // namespace

Status Allreduce(DataPlane* plane, const Operation& operation) {
  AllreduceJob job(plane, operation);
  if (plane->members().size == 1) {
    ReduceAlone(&job);
    return Status::Ok();
  }
  if (plane->members().host_count() > 1) return AllreduceHosts(plane, &job);
  if (plane->members().size <= kDirectRanks ||
      job.stream_bytes() <= kDirectBytes) {
    return AllreduceDirect(plane, &job);
  }
  return AllreduceShared(plane, &job);
}

}  // namespace tfring
