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
    stream_.Add(tensor.staged_bytes());
    result_growth_ = std::max(
        result_growth_, tensor.element_bytes / tensor.staged_element_bytes);
  }
}

uint64_t AllreduceJob::steps() const {
  return (stream_.size() + step_bytes() - 1) / step_bytes();
}

Range AllreduceJob::RangeOf(uint64_t step) const {
  const uint64_t begin = step * step_bytes();
  return {begin, std::min(begin + step_bytes(), stream_.size())};
}

void AllreduceJob::Stage(const OperationTensor& tensor, uint64_t first,
                         uint64_t count, void* to) const {
  const char* from = tensor.input + first * tensor.element_bytes;
  if (tensor.is_narrowed()) {
    return Narrow(tensor.dtype, tensor.staged_dtype, operation_.prescale, from,
                  to, count);
  }
  std::memcpy(to, from, count * tensor.element_bytes);
}

uint64_t AllreduceJob::ResultAt(const Range& chunk,
                                const OperationTensor& tensor, uint64_t offset,
                                uint64_t at) const {
  const uint64_t first = std::max(chunk.begin, at - offset);
  return (first - chunk.begin) * result_growth_ +
         (at - first) / tensor.staged_element_bytes * tensor.element_bytes;
}

Status AllreduceJob::CopyIn(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  LocalGroup& local = plane_->local();
  char* slot = local.slot(local.local_rank(), chunk);
  stream_.ForRange(range.begin, active_ ? range.end : range.begin,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     const uint64_t element = tensor.staged_element_bytes;
                     Stage(tensor, offset / element, bytes / element,
                           slot + (at - range.begin));
                   });
  plane_->Advance(&RankState::staged, chunk + 1);
  return Status::Ok();
}

Status AllreduceJob::ReduceDirectly(uint64_t step, uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
  const Range range = RangeOf(step);
  stream_.ForRange(
      range.begin, active_ ? range.end : range.begin,
      [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
        const OperationTensor& tensor = operation_.tensors[t];
        const uint64_t place = at - range.begin;
        const uint64_t first = offset / tensor.staged_element_bytes;
        Reduce(reduction_.SpecOf(t),
               tensor.is_narrowed()
                   ? reduction_.SourcesAt(chunk, place)
                   : reduction_.SourcesAt(chunk, place, tensor.input + offset),
               reduction_.source_count(),
               tensor.output + first * tensor.element_bytes,
               bytes / tensor.staged_element_bytes);
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
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     Reduce(reduction_.SpecOf(t),
                            reduction_.SourcesAt(chunk, at - range.begin),
                            reduction_.source_count(),
                            result + ResultAt(range, tensor, offset, at),
                            bytes / tensor.staged_element_bytes);
                   });
  plane_->Advance(&RankState::reduced, chunk + 1);
  return Status::Ok();
}

void AllreduceJob::CopyOut(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  const char* result = plane_->local().result(chunk);
  stream_.ForRange(range.begin, active_ ? range.end : range.begin,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     const uint64_t element = tensor.staged_element_bytes;
                     const uint64_t wide = tensor.element_bytes;
                     std::memcpy(tensor.output + offset / element * wide,
                                 result + ResultAt(range, tensor, offset, at),
                                 bytes / element * wide);
                   });
  plane_->Advance(&RankState::taken, chunk + 1);
}

void AllreduceJob::ReduceAlone() {
  constexpr uint64_t kBlock = 2048;
  char staged[kBlock * sizeof(uint16_t)];
  for (size_t t = 0; t < operation_.tensors.size(); ++t) {
    const OperationTensor& tensor = operation_.tensors[t];
    const ReduceSpec spec = reduction_.SpecOf(t);
    if (!tensor.is_narrowed()) {
      const void* const source = tensor.input;
      Reduce(spec, &source, 1, tensor.output, tensor.count);
      continue;
    }
    for (uint64_t first = 0; first < tensor.count; first += kBlock) {
      const uint64_t count = std::min(kBlock, tensor.count - first);
      Stage(tensor, first, count, staged);
      const void* const source = staged;
      Reduce(spec, &source, 1, tensor.output + first * tensor.element_bytes,
             count);
    }
  }
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

// Above this, reading every slot on every rank costs more than a second wait.
constexpr uint64_t kDirectBytes = 16 * 1024;
constexpr int kDirectRanks = 2;

}  // namespace

Status Allreduce(DataPlane* plane, const Operation& operation) {
  if (plane->members().host_count() > 1) {
    return AllreduceHosts(plane, operation);
  }
  AllreduceJob job(plane, operation);
  if (plane->members().size == 1) {
    job.ReduceAlone();
    return Status::Ok();
  }
  if (plane->members().size <= kDirectRanks ||
      job.stream_bytes() <= kDirectBytes) {
    return AllreduceDirect(plane, &job);
  }
  return AllreduceShared(plane, &job);
}

}  // namespace tfring
