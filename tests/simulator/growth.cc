#include "growth.h"

#include <cstdio>
#include <vector>

namespace simulator {
namespace {

struct Case {
  Model model;
  double partial_growth;  // see CostModel
  int ranks_per_host;
  std::vector<int> ranks;
  std::vector<double> links_gbit;
};

Model Of(const char* name, double parameters, int bytes, double compute_ms,
         double forward_share, uint64_t bucket_mib = 32) {
  Model model;
  model.bucket_bytes = bucket_mib << 20;
  model.name = name;
  model.gradient_bytes = static_cast<uint64_t>(parameters * bytes);
  model.forward_ms = compute_ms * forward_share;
  model.backward_ms = compute_ms - model.forward_ms;
  return model;
}

// docs/growth.md says where the compute times come from.
std::vector<Case> Cases() {
  const std::vector<int> ranks = {8,   16,  32,   64,   128,
                                  256, 512, 1024, 2048, 4096};
  const std::vector<double> links = {25, 100, 400};
  const double third = 1.0 / 3;
  return {
      {Of("ResNet-50 float32", 25.6e6, 4, 200, third), 1, 8, ranks, links},
      {Of("ResNet-50 16 bits", 25.6e6, 2, 200, third), 1, 8, ranks, links},
      {Of("7B bfloat16", 7e9, 2, 4400, third, 128), 2, 8, ranks, links},
      {Of("ResNet-101 float32", 44.5e6, 4, 495, third), 1, 4, {4, 512}, {25}},
      {Of("VGG-16 float32", 138.4e6, 4, 416, third), 1, 4, {4, 512}, {25}},
  };
}

void Show(const Case& one, CostModel costs) {
  costs.partial_growth = one.partial_growth;
  for (const int ranks : one.ranks) {
    costs.ranks_per_host = one.ranks_per_host;
    costs.hosts = ranks / one.ranks_per_host;
    for (const bool overlap : {false, true}) {
      StepOptions options;
      options.overlap = overlap;
      options.steps = 1;
      const StepCost cost = PredictStep(costs, one.model, options);
      std::printf("%s,%g,%d,%d,%.3f,%.3f,%.4f,%.3f,%llu\n",
                  one.model.name.c_str(), costs.link_gbit, ranks, overlap,
                  cost.step_ms, cost.not_hidden_ms, cost.efficiency(),
                  cost.agreement_ms,
                  static_cast<unsigned long long>(cost.messages));
    }
  }
}

}  // namespace

void ShowGrowth(const Arguments& arguments) {
  std::printf(
      "model,link_gbit,ranks,overlap,step_ms,not_hidden_ms,efficiency,"
      "rank0_ms,messages_per_host\n");
  for (const Case& one : Cases()) {
    for (const double link : one.links_gbit) {
      CostModel costs = arguments.costs;
      costs.link_gbit = link;
      Show(one, costs);
    }
  }
}

}  // namespace simulator
