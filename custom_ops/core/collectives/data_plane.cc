#include "custom_ops/core/collectives/data_plane.h"

#include <algorithm>
#include <utility>

#include "custom_ops/core/collectives/here_pipeline.h"
#include "custom_ops/core/collectives/stream.h"

namespace tfring {
namespace {

// Bounds the memory for chunks of other hosts.
constexpr uint64_t kRemoteBytes = uint64_t{64} << 20;
constexpr uint64_t kSmallestChunk = 4096;

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
      fail_after_s_(fail_after_s),
      pool_(local->copy_threads()) {}

uint64_t DataPlane::meeting_chunk_bytes() const {
  const auto size = static_cast<uint64_t>(members_->size);
  const uint64_t most =
      std::max(kSmallestChunk, kRemoteBytes / (size * local_->depth()));
  return std::min(chunk_bytes(), most / kStreamAlignment * kStreamAlignment);
}

char* DataPlane::ChunkOf(int place, uint64_t chunk) const {
  const auto p = static_cast<size_t>(place);
  if (members_->host_of[p] == members_->host) {
    return local_->slot(members_->local_of[p], chunk);
  }
  // Members on other hosts in the order of their hosts and places.
  auto ordinal = static_cast<uint64_t>(members_->local_of[p]);
  for (int h = 0; h < members_->host_of[p]; ++h) {
    if (h == members_->host) continue;
    ordinal += members_->on_host[static_cast<size_t>(h)].size();
  }
  return local_->remote(chunk, ordinal);
}

Status DataPlane::RunPipeline(uint64_t steps,
                              const std::vector<Stage>& stages) {
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

Status DataPlane::RunHere(uint64_t steps,
                          std::initializer_list<HereStage> stages) {
  const uint64_t first = next_chunk_;
  next_chunk_ += steps;
  HerePipeline pipeline(local_, stages, steps, first);
  while (!pipeline.done()) {
    const int next = pipeline.Next();
    if (next < 0) {
      TFR_RETURN_IF_ERROR(AwaitAny(pipeline.missing(), kAll));
      continue;
    }
    const uint64_t step = pipeline.Take(next);
    TFR_RETURN_IF_ERROR(stages.begin()[next].run(step, first + step));
    if (next == 0) faults_->AtChunk(index_, step);
  }
  return Status::Ok();
}

Status DataPlane::Await(int local, Counter RankState::* counter,
                        uint64_t value) {
  Goals goals;
  goals.Add({counter, value});
  return AwaitAny(goals, local);
}

Status DataPlane::AwaitAll(Counter RankState::* counter, uint64_t value) {
  return Await(kAll, counter, value);
}

Status DataPlane::AwaitAny(const Goals& goals, int of) {
  if (local_->Reached(goals, of)) return Status::Ok();
  const auto interrupted = [this] { return failure_->Stops(index_); };
  const Deadline deadline = FailDeadline(fail_after_s_);
  switch (local_->WaitFor(goals, of, interrupted, deadline)) {
    case WaitOutcome::kReady:
      return Status::Ok();
    case WaitOutcome::kInterrupted:
      return failure_->status();
    default:
      const int rank = of == kAll ? local_->Slowest() : of;
      return DeadlineExceeded(
          StrCat("rank ",
                 members_->RankAt(members_->here()[static_cast<size_t>(rank)]),
                 " stopped in the middle of it for ", fail_after_s_, " s"));
  }
}

Status DataPlane::RunOverHosts(uint64_t steps, std::vector<Stage> before,
                               const std::vector<Stage>& after) {
  const Stage nothing = [](uint64_t, uint64_t) { return Status::Ok(); };
  while (before.size() + after.size() < local_->depth()) {
    before.push_back(nothing);
  }
  before.insert(before.end(), after.begin(), after.end());
  return RunPipeline(steps, before);
}

Status DataPlane::AwaitHosts() {
  return mesh_->Turn(index_, FailDeadline(fail_after_s_));
}

}  // namespace tfring
