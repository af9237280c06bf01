#include "custom_ops/core/collectives/allreduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "custom_ops/core/collectives/allreduce_hosts.h"
#include "custom_ops/core/collectives/allreduce_job.h"
#include "custom_ops/core/collectives/store_elements.h"
#include "custom_ops/core/common/copy.h"

namespace tfring {
namespace {

// The bytes of `part` before and behind those of `hole`.
Range Before(const Range& part, const Range& hole) {
  return {part.begin, std::clamp(hole.begin, part.begin, part.end)};
}
Range Behind(const Range& part, const Range& hole) {
  return {std::clamp(hole.end, part.begin, part.end), part.end};
}

}  // namespace

AllreduceJob::AllreduceJob(DataPlane* plane, const Operation& operation)
    : plane_(plane),
      operation_(operation),
      reduction_(plane, operation),
      active_(plane->IsActive(plane->members().rank)) {
  stream_.Reserve(operation.tensors.size());
  for (const OperationTensor& tensor : operation.tensors) {
    stream_.Add(tensor.staged_bytes());
    narrows_ = narrows_ || tensor.is_narrowed();
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

uint64_t AllreduceJob::SlotOffset(uint64_t chunk) const {
  return plane_->TurnOf(chunk, stream_.size(), step_bytes());
}

uint64_t AllreduceJob::ResultAt(uint64_t begin, const OperationTensor& tensor,
                                uint64_t offset, uint64_t at) const {
  const uint64_t first = std::max(begin, at - offset);
  return (first - begin) * result_growth_ +
         (at - first) / tensor.staged_element_bytes * tensor.element_bytes;
}

void AllreduceJob::CopyInRange(const Range& range, uint64_t begin,
                               uint64_t chunk, Stores stores) const {
  LocalGroup& local = plane_->local();
  char* slot = local.slot(local.local_rank(), chunk) + SlotOffset(chunk);
  stream_.ForRange(range.begin, range.end,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     const uint64_t element = tensor.staged_element_bytes;
                     StageElements(
                         operation_, tensor,
                         tensor.input + offset / element * tensor.element_bytes,
                         bytes / element, slot + (at - begin), stores);
                   });
}

void AllreduceJob::CopyOutRange(const Range& range, uint64_t begin,
                                uint64_t chunk) const {
  const char* result = plane_->local().result(chunk);
  stream_.ForRange(range.begin, range.end,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     const uint64_t element = tensor.staged_element_bytes;
                     const uint64_t wide = tensor.element_bytes;
                     CopyBytes(tensor.output + offset / element * wide,
                               result + ResultAt(begin, tensor, offset, at),
                               bytes / element * wide);
                   });
}

void AllreduceJob::ShareRange(const Range& range, uint64_t begin,
                              uint64_t chunk, Stores stores) const {
  char* result = plane_->local().result(chunk);
  stream_.ForRange(range.begin, range.end,
                   [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
                     const OperationTensor& tensor = operation_.tensors[t];
                     const uint64_t element = tensor.staged_element_bytes;
                     const uint64_t wide = tensor.element_bytes;
                     CopyBytes(result + ResultAt(begin, tensor, offset, at),
                               tensor.output + offset / element * wide,
                               bytes / element * wide, stores);
                   });
}

void AllreduceJob::ReduceRange(const Range& range, uint64_t begin,
                               uint64_t chunk, char* result) const {
  std::array<const void*, kMaxLocalRanks> sources;
  const uint64_t slot_begin = SlotOffset(chunk);
  stream_.ForRange(
      range.begin, range.end,
      [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
        const OperationTensor& tensor = operation_.tensors[t];
        const uint64_t count = bytes / tensor.staged_element_bytes;
        // The own input is as good as the slot, and nearer, unless it was
        // rounded on its way into the slot.
        const bool nearer = active_ && !tensor.is_narrowed();
        reduction_.ListSources(chunk, slot_begin + (at - begin),
                               nearer ? tensor.input + offset : nullptr,
                               sources.data());
        const uint64_t first = offset / tensor.staged_element_bytes;
        char* to = result == nullptr
                       ? tensor.output + first * tensor.element_bytes
                       : result + ResultAt(begin, tensor, offset, at);
        Reduce(reduction_.SpecOf(t), sources.data(), reduction_.source_count(),
               to, count);
      });
}

Status AllreduceJob::CopyIn(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  if (active_) {
    plane_->StoreForOthers(range.size(), [&](Stores stores) {
      plane_->ForParts(range, [&](const Range& part) {
        CopyInRange(part, range.begin, chunk, stores);
      });
    });
  }
  plane_->Advance(&RankState::staged, chunk + 1);
  return Status::Ok();
}

Status AllreduceJob::ReduceDirectly(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  if (active_) {
    plane_->ForParts(range, [&](const Range& part) {
      ReduceRange(part, range.begin, chunk, nullptr);
    });
  }
  plane_->Advance(&RankState::taken, chunk + 1);
  return Status::Ok();
}

Range AllreduceJob::ShareOf(const Range& range) const {
  const auto rank = static_cast<uint64_t>(plane_->local().local_rank());
  const auto parts = static_cast<uint64_t>(plane_->local().local_size());
  return {ShareBegin(range.begin, range.end, rank, parts),
          ShareBegin(range.begin, range.end, rank + 1, parts)};
}

Status AllreduceJob::CopyInForOthers(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  const Range own = narrows_ ? Range{range.end, range.end} : ShareOf(range);
  if (active_) {
    plane_->StoreForOthers(range.size() - own.size(), [&](Stores stores) {
      plane_->ForParts(range, [&](const Range& part) {
        CopyInRange(Before(part, own), range.begin, chunk, stores);
        CopyInRange(Behind(part, own), range.begin, chunk, stores);
      });
    });
  }
  plane_->Advance(&RankState::staged, chunk + 1);
  return Status::Ok();
}

Status AllreduceJob::ReduceShare(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  const Range own = ShareOf(range);
  char* const result = plane_->local().result(chunk);
  const Stores stores = plane_->StoresForOthers();
  const bool streams = active_ && stores == Stores::kStreaming;
  plane_->ForParts(own, [&](const Range& part) {
    for (uint64_t at = part.begin; at < part.end; at += kBlockBytes) {
      const Range block = {at, std::min(part.end, at + kBlockBytes)};
      // What is streamed to the others comes from the output, in the cache.
      ReduceRange(block, range.begin, chunk, streams ? nullptr : result);
      if (streams) {
        ShareRange(block, range.begin, chunk, stores);
      } else if (active_) {
        CopyOutRange(block, range.begin, chunk);
      }
    }
  });
  plane_->Advance(&RankState::reduced, chunk + 1);
  return Status::Ok();
}

Status AllreduceJob::CopyOutOfOthers(uint64_t step, uint64_t chunk) {
  const Range range = RangeOf(step);
  const Range own = ShareOf(range);
  if (active_) {
    plane_->ForParts(range, [&](const Range& part) {
      CopyOutRange(Before(part, own), range.begin, chunk);
      CopyOutRange(Behind(part, own), range.begin, chunk);
    });
  }
  plane_->Advance(&RankState::taken, chunk + 1);
  return Status::Ok();
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
      StageElements(operation_, tensor,
                    tensor.input + first * tensor.element_bytes, count, staged,
                    Stores::kPlain);
      const void* const source = staged;
      Reduce(spec, &source, 1, tensor.output + first * tensor.element_bytes,
             count);
    }
  }
}

namespace {

Status AllreduceDirect(DataPlane* plane, AllreduceJob* job) {
  return plane->RunHere(
      job->steps(),
      {{nullptr, [job](uint64_t step,
                       uint64_t chunk) { return job->CopyIn(step, chunk); }},
       {&RankState::staged, [job](uint64_t step, uint64_t chunk) {
          return job->ReduceDirectly(step, chunk);
        }}});
}

Status AllreduceShared(DataPlane* plane, AllreduceJob* job) {
  return plane->RunHere(
      job->steps(),
      {{nullptr,
        [job](uint64_t step, uint64_t chunk) {
          return job->CopyInForOthers(step, chunk);
        }},
       {&RankState::staged,
        [job](uint64_t step, uint64_t chunk) {
          return job->ReduceShare(step, chunk);
        }},
       {&RankState::reduced, [job](uint64_t step, uint64_t chunk) {
          return job->CopyOutOfOthers(step, chunk);
        }}});
}

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
  if (job.stream_bytes() <= plane->local().direct_bytes()) {
    return AllreduceDirect(plane, &job);
  }
  return AllreduceShared(plane, &job);
}

}  // namespace tfring
