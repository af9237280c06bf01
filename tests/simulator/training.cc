#include "training.h"

#include <algorithm>
#include <functional>
#include <random>

#include "exchange.h"
#include "pretended_world.h"

namespace simulator {
namespace {

Nanoseconds NsOf(double ms) { return CostModel::Ns(ms * 1e3); }
double MsOf(Nanoseconds ns) { return static_cast<double>(ns) / 1e6; }

class Training {
 public:
  Training(const CostModel& costs, const Model& model,
           const StepOptions& options)
      : costs_(costs),
        model_(model),
        options_(options),
        exchange_(costs),
        world_(costs, &clock_,
               [this](const std::vector<Nanoseconds>& begins, uint64_t bytes) {
                 return exchange_.Ends(begins, bytes);
               }),
        random_(options.seed),
        done_(static_cast<size_t>(costs.hosts)) {
    for (uint64_t at = 0; at < model.gradient_bytes; at += model.bucket_bytes) {
      const uint64_t bytes =
          std::min(model.bucket_bytes, model.gradient_bytes - at);
      buckets_.push_back({std::to_string(buckets_.size()), 1, bytes});
    }
    world_.OnDone([this](int host, const Collective&) { Done(host); });
  }

  StepCost Run() {
    for (int h = 0; h < costs_.hosts; ++h) Start(h);
    clock_.Run();
    StepCost cost;
    const Nanoseconds begin = ends_.size() > 1 ? ends_[ends_.size() - 2] : 0;
    cost.step_ms = MsOf(ends_.back() - begin);
    cost.not_hidden_ms = cost.step_ms - model_.forward_ms - model_.backward_ms;
    cost.agreement_ms = MsOf(world_.hub_busy()) / options_.steps;
    cost.buckets = buckets_.size();
    cost.messages = MessagesPerStep();
    return cost;
  }

 private:
  void Start(int host) {
    std::uniform_real_distribution<double> late(0, options_.skew_ms);
    for (int local = 0; local < costs_.ranks_per_host; ++local) {
      const int rank = host * costs_.ranks_per_host + local;
      const double start =
          MsOf(clock_.now()) + (options_.skew_ms > 0 ? late(random_) : 0);
      double ready = 0;
      for (const Collective& bucket : buckets_) {
        ready += static_cast<double>(bucket.bytes);
        const double part = options_.overlap ? ready / TotalBytes() : 1;
        const double at = start + model_.forward_ms + part * model_.backward_ms;
        clock_.At(NsOf(at), [=] { world_.Submit(rank, bucket); });
      }
    }
  }

  double TotalBytes() const {
    return static_cast<double>(model_.gradient_bytes);
  }

  void Done(int host) {
    uint64_t& done = done_[static_cast<size_t>(host)];
    if (++done % buckets_.size() != 0) return;
    const size_t step = done / buckets_.size();
    ends_.resize(std::max(ends_.size(), step));
    ends_[step - 1] = std::max(ends_[step - 1], clock_.now());
    if (step < static_cast<size_t>(options_.steps)) Start(host);
  }

  // Of the last host's ranks together.
  uint64_t MessagesPerStep() const {
    uint64_t all = 0;
    for (int local = 0; local < costs_.ranks_per_host; ++local) {
      const MessageCount& one = world_.MessagesOf(costs_.ranks() - 1 - local);
      all += one.sent + one.received;
    }
    return all / static_cast<uint64_t>(options_.steps);
  }

  const CostModel costs_;
  const Model model_;
  const StepOptions options_;
  EventClock clock_;
  Exchange exchange_;
  PretendedWorld world_;
  std::mt19937_64 random_;
  std::vector<Collective> buckets_;
  std::vector<uint64_t> done_;     // by host
  std::vector<Nanoseconds> ends_;  // of each step, on the last host
};

}  // namespace

StepCost PredictStep(const CostModel& costs, const Model& model,
                     const StepOptions& options) {
  return Training(costs, model, options).Run();
}

}  // namespace simulator
