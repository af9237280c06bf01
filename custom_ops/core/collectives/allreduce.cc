#include "custom_ops/core/collectives/allreduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "custom_ops/core/collectives/allreduce_hosts.h"
#include "custom_ops/core/collectives/allreduce_job.h"

namespace tfring {

AllreduceJob::AllreduceJob(DataPlane* plane, const Operation& operation)
    : plane_(plane), operation_(operation) {
  stream_.Reserve(operation.tensors.size());
  for (const OperationTensor& tensor : operation.tensors) {
    stream_.Add(tensor.bytes);
  }
  const bool average = operation.reduce_op == TFR_AVERAGE;
  spec_.op = average ? static_cast<int32_t>(TFR_SUM) : operation.reduce_op;
  spec_.prescale = operation.prescale;
  spec_.postscale = operation.postscale;
  spec_.divisor = average ? plane->members().size : 1;
  spec_.dtype = 0;
  sources_.resize(static_cast<size_t>(plane->local().local_size()));
}

ReduceSpec AllreduceJob::SpecOf(size_t tensor) const {
  ReduceSpec spec = spec_;
  spec.dtype = operation_.tensors[tensor].dtype;
  return spec;
}

uint64_t AllreduceJob::steps() const {
  const uint64_t chunk = plane_->chunk_bytes();
  return (stream_.size() + chunk - 1) / chunk;
}

ChunkRange AllreduceJob::RangeOf(uint64_t step) const {
  const uint64_t begin = step * plane_->chunk_bytes();
  return {begin, std::min(begin + plane_->chunk_bytes(), stream_.size())};
}

Status AllreduceJob::CopyIn(uint64_t step, uint64_t chunk) {
  const ChunkRange range = RangeOf(step);
  LocalGroup& local = plane_->local();
  char* slot = local.slot(local.local_rank(), chunk);
  stream_.ForRange(range.begin, range.end,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     std::memcpy(slot + (at - range.begin),
                                 operation_.tensors[t].input + offset, bytes);
                   });
  plane_->Advance(&RankState::staged, chunk + 1);
  return Status::Ok();
}

const void* const* AllreduceJob::SlotSources(uint64_t chunk, uint64_t offset) {
  for (size_t p = 0; p < sources_.size(); ++p) {
    sources_[p] = plane_->local().slot(static_cast<int>(p), chunk) + offset;
  }
  return sources_.data();
}

Status AllreduceJob::ReduceDirectly(uint64_t step, uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
  const ChunkRange range = RangeOf(step);
  stream_.ForRange(
      range.begin, range.end,
      [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
        const OperationTensor& tensor = operation_.tensors[t];
        const ReduceSpec spec = SpecOf(t);
        SlotSources(chunk, at - range.begin);
        // The own input is as good as the own slot, and nearer.
        sources_[static_cast<size_t>(plane_->local().local_rank())] =
            tensor.input + offset;
        Reduce(spec, sources_.data(), static_cast<int>(sources_.size()),
               tensor.output + offset, bytes / tensor.element_bytes);
      });
  plane_->Advance(&RankState::taken, chunk + 1);
  return Status::Ok();
}

Status AllreduceJob::ReduceShare(uint64_t step, uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
  const ChunkRange range = RangeOf(step);
  const auto rank = static_cast<uint64_t>(plane_->local().local_rank());
  const uint64_t parts = sources_.size();
  char* result = plane_->local().result(chunk);
  stream_.ForRange(ShareBegin(range.begin, range.end, rank, parts),
                   ShareBegin(range.begin, range.end, rank + 1, parts),
                   [&](size_t t, uint64_t, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     Reduce(SpecOf(t), SlotSources(chunk, at - range.begin),
                            static_cast<int>(parts),
                            result + (at - range.begin),
                            bytes / tensor.element_bytes);
                   });
  plane_->Advance(&RankState::reduced, chunk + 1);
  return Status::Ok();
}

void AllreduceJob::CopyOut(uint64_t step, uint64_t chunk) {
  const ChunkRange range = RangeOf(step);
  const char* result = plane_->local().result(chunk);
  stream_.ForRange(range.begin, range.end,
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
void ReduceAlone(const AllreduceJob& job) {
  const std::vector<OperationTensor>& tensors = job.operation().tensors;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const void* const source = tensors[t].input;
    Reduce(job.SpecOf(t), &source, 1, tensors[t].output, tensors[t].count);
  }
}

// Above this, reading every slot on every rank costs more than a second wait.
constexpr uint64_t kDirectBytes = 16 * 1024;
constexpr int kDirectRanks = 2;

}  // namespace

Status Allreduce(DataPlane* plane, const Operation& operation) {
  AllreduceJob job(plane, operation);
  if (plane->members().size == 1) {
    ReduceAlone(job);
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
