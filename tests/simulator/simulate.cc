// Predicts what training steps cost on jobs of any size; see README.md.
//
//   simulate hub                     measures rank 0's cost of agreement
//   simulate exchange KEY=VALUE...   one allreduce between hosts
//   simulate step KEY=VALUE...       one training step
//   simulate growth                  the tables of docs/growth.md
//
// KEYs are the fields of CostModel and Model; sizes in bytes.
#include <cstdio>
#include <exception>
#include <string>

#include "arguments.h"
#include "exchange.h"
#include "growth.h"
#include "hub_cost.h"
#include "training.h"

namespace simulator {
namespace {

void ShowHub() {
  struct Job {
    int hosts;
    int ranks_per_host;
  };
  std::printf("hosts ranks messages thread_us time_us thread_us_per_message\n");
  for (const Job job : {Job{2, 8}, {2, 2048}, {8, 8}, {64, 8}, {512, 8}}) {
    const HubCost cost = MeasureHub(job.hosts, job.ranks_per_host, 201);
    std::printf("%5d %5d %8d %9.0f %7.0f %.2f\n", job.hosts,
                job.hosts * job.ranks_per_host, cost.messages,
                cost.processor_us, cost.time_us,
                cost.processor_us / cost.messages);
  }
}

void ShowExchange(const Arguments& arguments) {
  const uint64_t bytes = arguments.model.gradient_bytes;
  const tfring::HostAlgorithm chosen =
      tfring::ChooseHostAlgorithm(bytes, arguments.costs.hosts);
  for (const auto algorithm :
       {tfring::HostAlgorithm::kDirect, tfring::HostAlgorithm::kHalvingDoubling,
        tfring::HostAlgorithm::kRing}) {
    Exchange exchange(arguments.costs, algorithm);
    const Prediction& one = exchange.Of(bytes);
    std::printf("%-16s %10.3f ms; a host sends %llu messages, %llu bytes%s\n",
                tfring::HostAlgorithmName(algorithm),
                static_cast<double>(one.time) / 1e6,
                static_cast<unsigned long long>(one.messages),
                static_cast<unsigned long long>(one.wire_bytes),
                algorithm == chosen ? "  (the engine's choice)" : "");
  }
}

void ShowStep(const Arguments& arguments) {
  const StepCost cost =
      PredictStep(arguments.costs, arguments.model, arguments.step);
  std::printf(
      "step %.2f ms, not hidden %.2f ms, efficiency %.1f%%; %llu buckets, "
      "rank 0's side channel busy for %.2f ms\n",
      cost.step_ms, cost.not_hidden_ms, 100 * cost.efficiency(),
      static_cast<unsigned long long>(cost.buckets), cost.agreement_ms);
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const Arguments arguments = Arguments::Parse(argc - 2, argv + 2);
  if (what == "hub") {
    ShowHub();
  } else if (what == "exchange") {
    ShowExchange(arguments);
  } else if (what == "step") {
    ShowStep(arguments);
  } else if (what == "growth") {
    ShowGrowth(arguments);
  } else {
    std::fprintf(stderr, "simulate hub | exchange | step | growth\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace simulator

int main(int argc, char** argv) {
  try {
    return simulator::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulate: %s\n", error.what());
    return 1;
  }
}
