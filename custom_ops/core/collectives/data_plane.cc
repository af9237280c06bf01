#include "custom_ops/core/collectives/data_plane.h"

#include <utility>

namespace tfring {
namespace {

Deadline FailDeadline(double seconds) {
  return seconds > 0 ? Deadline::After(seconds) : Deadline::Never();
}

}  // namespace

DataPlane::DataPlane(const GroupMembers* members, LocalGroup* local, Mesh* mesh,
                     const Failure* failure, Faults* faults,
                     double fail_after_s)
    : members_(members),
      local_(local),
      mesh_(mesh),
      failure_(failure),
      faults_(faults),
      fail_after_s_(fail_after_s) {}

Status DataPlane::RunPipeline(uint64_t steps,
                              std::initializer_list<Stage> stages) {
  const uint64_t first = next_chunk_;
  next_chunk_ += steps;
  const uint64_t depth = local_->depth();
  for (uint64_t i = 0; i < steps + stages.size() - 1; ++i) {
    if (i < steps && first + i >= depth) {
      TFR_RETURN_IF_ERROR(AwaitAll(&RankState::taken, first + i + 1 - depth));
    }
    uint64_t lag = 0;
    for (const Stage& stage : stages) {
      if (i >= lag && i - lag < steps) {
        TFR_RETURN_IF_ERROR(stage(i - lag, first + i - lag));
      }
      ++lag;
    }
    faults_->AtChunk(index_, i);
  }
  return Status::Ok();
}

Status DataPlane::Await(int local, Counter RankState::* counter,
                        uint64_t value) {
  Counter& watched = local_->state(local).*counter;
  if (watched.load(std::memory_order_acquire) >= value) return Status::Ok();
  const auto ready = [&watched, value] {
    return watched.load(std::memory_order_seq_cst) >= value;
  };
  const auto interrupted = [this] { return failure_->Stops(index_); };
  switch (local_->Wait(ready, interrupted, FailDeadline(fail_after_s_))) {
    case WaitOutcome::kReady:
      return Status::Ok();
    case WaitOutcome::kInterrupted:
      return failure_->status();
    default:
      return DeadlineExceeded(
          StrCat("rank ",
                 members_->RankAt(members_->here()[static_cast<size_t>(local)]),
                 " stopped in the middle of it for ", fail_after_s_, " s"));
  }
}

Status DataPlane::AwaitAll(Counter RankState::* counter, uint64_t value) {
  for (int p = 0; p < local_->local_size(); ++p) {
    if (p == local_->local_rank()) continue;
    TFR_RETURN_IF_ERROR(Await(p, counter, value));
  }
  return Status::Ok();
}

Status DataPlane::ExchangeWithHosts(std::vector<Transfer> transfers) {
  return mesh_->Exchange(next_tag_++, std::move(transfers), index_,
                         FailDeadline(fail_after_s_));
}

}  // namespace tfring
