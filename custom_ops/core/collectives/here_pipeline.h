// Which chunk of a collective inside one host goes through which stage next.
//
// The latest stage that may run does: its chunk is the one most likely still in
// the cache, and taking chunks makes room. A rank that lacks something of
// others for one stage goes on with another, so that it waits only when there
// is nothing at all to do: with as many ranks as processors the ranks hardly
// ever wait, and on a crowded host each does several chunks per turn on the
// processor.
#ifndef TFRING_CORE_COLLECTIVES_HERE_PIPELINE_H_
#define TFRING_CORE_COLLECTIVES_HERE_PIPELINE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "custom_ops/core/collectives/stage.h"
#include "custom_ops/core/transport/local_group.h"

namespace tfring {

class HerePipeline {
 public:
  // The chunks `first` to `first` + `steps`.
  HerePipeline(const LocalGroup* local, std::initializer_list<HereStage> stages,
               uint64_t steps, uint64_t first)
      : local_(local), steps_(steps), first_(first), last_(stages.size() - 1) {
    size_t s = 0;
    for (const HereStage& stage : stages) needs_[s++] = stage.needs;
    needs_.front() = &RankState::taken;
  }

  bool done() const { return done_[last_] == steps_; }

  // The stage to run, or -1: none can until one of missing() is reached.
  int Next() {
    missing_.Clear();
    for (size_t s = last_ + 1; s-- > 0;) {
      if (done_[s] == Ahead(s)) continue;
      const Goal goal = {needs_[s], Needed(s)};
      if (local_->Reached(goal, kAll)) return static_cast<int>(s);
      missing_.Add(goal);
    }
    return -1;
  }
  const Goals& missing() const { return missing_; }

  // The chunk that goes through the stage now, counted from 0.
  uint64_t Take(int stage) { return done_[static_cast<size_t>(stage)]++; }

 private:
  static constexpr size_t kMostStages = 4;

  // Chunks that have come so far; the first stage also waits for this rank's
  // own last one.
  uint64_t Ahead(size_t stage) const {
    if (stage > 0) return done_[stage - 1];
    return std::min(steps_, done_[last_] + local_->depth());
  }
  uint64_t Needed(size_t stage) const {
    const uint64_t passed = first_ + done_[stage] + 1;
    if (stage > 0) return passed;
    return passed > local_->depth() ? passed - local_->depth() : 0;
  }

  const LocalGroup* const local_;
  const uint64_t steps_;
  const uint64_t first_;
  const size_t last_;                            // stage
  std::array<uint64_t, kMostStages> done_ = {};  // chunks that each has handled
  std::array<Counter RankState::*, kMostStages> needs_ = {};
  Goals missing_;
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_HERE_PIPELINE_H_
