#include "exchange.h"

#include <algorithm>
#include <vector>

namespace simulator {
namespace {

using tfring::HostMove;
using tfring::HostPlan;
using tfring::HostStep;

// What can do one thing at a time.
class Resource {
 public:
  // From `ready` on, once it is free; returns when the work is done.
  Nanoseconds Use(Nanoseconds ready, Nanoseconds work) {
    free_ = std::max(free_, ready) + work;
    return free_;
  }

 private:
  Nanoseconds free_ = 0;
};

// One host's part of one allreduce.
class HostRun {
 public:
  HostRun(const CostModel& costs, const HostPlan* plan, uint64_t bytes,
          Prediction* result)
      : costs_(costs),
        plan_(plan),
        bytes_(bytes),
        result_(result),
        leaders_(static_cast<size_t>(costs.leaders_of_host())) {}

  Nanoseconds Run() {
    StartNext();
    clock_.Run();
    return clock_.now();
  }

 private:
  uint64_t chunks() const {
    return (bytes_ + costs_.chunk_bytes - 1) / costs_.chunk_bytes;
  }
  double SizeOf(uint64_t chunk) const {
    const uint64_t begin = chunk * costs_.chunk_bytes;
    return static_cast<double>(std::min(bytes_ - begin, costs_.chunk_bytes));
  }

  // One chunk after the other, so that the first is on its way early.
  void StartNext() {
    const bool room = under_way_ < costs_.room();
    if (starting_ || !room || next_ == chunks()) return;
    const uint64_t chunk = next_++;
    starting_ = true;
    ++under_way_;
    const double ranks = costs_.ranks_per_host;
    // Copy in: read and write all. Reduce: read a share of every rank's chunk
    // and write that share.
    const double passes = ranks == 1 ? 0 : 2 + 1 + 1 / ranks;
    WorkOfAll(costs_.MemoryNs(passes * SizeOf(chunk)), [=] {
      starting_ = false;
      Step(chunk, 0);
      StartNext();
    });
  }

  void Step(uint64_t chunk, size_t step) {
    if (step == plan_->size()) {
      CopyOut(chunk);
      return;
    }
    const HostStep& moves = (*plan_)[step];
    const double sent = BytesOf(moves, moves.sends, chunk);
    result_->messages += moves.sends.size();
    result_->wire_bytes += static_cast<uint64_t>(sent);
    Work(chunk, HandlingNs(moves.sends, sent), [=] {
      const Nanoseconds out =
          link_.Use(clock_.now(), costs_.WireNs(static_cast<uint64_t>(sent)));
      clock_.At(out + CostModel::Ns(costs_.latency_us),
                [=] { Arrive(chunk, step); });
    });
  }

  void Arrive(uint64_t chunk, size_t step) {
    const HostStep& moves = (*plan_)[step];
    const double bytes = BytesOf(moves, moves.receives, chunk);
    Nanoseconds work = HandlingNs(moves.receives, bytes);
    if (moves.reduces) work += costs_.MemoryNs(2 * bytes);
    Work(chunk, work, [=] { Step(chunk, step + 1); });
  }

  void CopyOut(uint64_t chunk) {
    const double passes = costs_.ranks_per_host == 1 ? 0 : 2;
    WorkOfAll(costs_.MemoryNs(passes * SizeOf(chunk)), [=] {
      --under_way_;
      StartNext();
    });
  }

  // Does `work` on the thread of the chunk's leader, then goes on with `then`.
  template <typename Then>
  void Work(uint64_t chunk, Nanoseconds work, Then then) {
    Resource& leader = leaders_[chunk % leaders_.size()];
    clock_.At(leader.Use(clock_.now(), work), then);
  }
  // ... on each rank's thread. Ranks that do not lead have time.
  template <typename Then>
  void WorkOfAll(Nanoseconds work, Then then) {
    Nanoseconds end = 0;
    for (Resource& leader : leaders_) {
      end = std::max(end, leader.Use(clock_.now(), work));
    }
    clock_.At(end, then);
  }

  double BytesOf(const HostStep& step, const std::vector<HostMove>& moves,
                 uint64_t chunk) const {
    double parts = 0;
    for (const HostMove& move : moves) parts += move.count;
    const double growth = step.reduces ? costs_.partial_growth : 1;
    return growth * SizeOf(chunk) * parts / costs_.hosts;
  }
  Nanoseconds HandlingNs(const std::vector<HostMove>& moves,
                         double bytes) const {
    return CostModel::Ns(static_cast<double>(moves.size()) *
                         costs_.message_us) +
           static_cast<Nanoseconds>(bytes / costs_.socket_rate);
  }

  const CostModel& costs_;
  const HostPlan* const plan_;
  const uint64_t bytes_;
  Prediction* const result_;
  EventClock clock_;
  std::vector<Resource> leaders_;
  Resource link_;
  uint64_t next_ = 0;       // chunk to start
  uint64_t under_way_ = 0;  // chunks
  bool starting_ = false;
};

}  // namespace

const Prediction& Exchange::Of(uint64_t bytes) {
  const auto [at, is_new] = known_.try_emplace(bytes);
  if (is_new) at->second = Predict(bytes);
  return at->second;
}

std::vector<Nanoseconds> Exchange::Ends(const std::vector<Nanoseconds>& begins,
                                        uint64_t bytes) {
  const Nanoseconds all = *std::max_element(begins.begin(), begins.end());
  return std::vector<Nanoseconds>(begins.size(), all + Of(bytes).time);
}

Prediction Exchange::Predict(uint64_t bytes) const {
  Prediction result;
  result.algorithm =
      algorithm_.value_or(tfring::ChooseHostAlgorithm(bytes, costs_.hosts));
  const HostPlan plan =
      tfring::PlanAllreduce(result.algorithm, 0, costs_.hosts);
  result.time = HostRun(costs_, &plan, bytes, &result).Run();
  return result;
}

}  // namespace simulator
