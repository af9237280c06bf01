#include "custom_ops/core/collectives/host_algorithm.h"

#include <cstddef>
#include <utility>

namespace tfring {
namespace {

// Up to here H-1 messages at a time cost less than further steps.
constexpr int kDirectHosts = 8;
// Beyond, a part of a chunk is so short that a ring's H-1 messages a phase cost
// more than moving it: all the same at 12 hosts (measured), but for chunks of
// 256 KiB at 64 hosts 1.6 times the time of halving-doubling, at 512 hosts 7
// times (predicted by tests/simulator).
constexpr int kRingHosts = 12;
// A ring is full of data all the time once each part is this large.
constexpr uint64_t kRingPartBytes = 256 * 1024;

int Modulo(int value, int hosts) { return (value % hosts + hosts) % hosts; }

// --- direct -----------------------------------------------------------------

// Each host begins with the next one, so that not all send to the same.

HostPlan DirectReduce(int host, int hosts) {
  HostStep step = {{}, {}, true};
  for (int i = 1; i < hosts; ++i) {
    const int to = Modulo(host + i, hosts);
    step.sends.push_back({to, to, 1});
    step.receives.push_back({Modulo(host - i, hosts), host, 1});
  }
  return {std::move(step)};
}

HostPlan DirectSpread(int host, int hosts) {
  HostStep step = {{}, {}, false};
  for (int i = 1; i < hosts; ++i) {
    const int from = Modulo(host - i, hosts);
    step.sends.push_back({Modulo(host + i, hosts), host, 1});
    step.receives.push_back({from, from, 1});
  }
  return {std::move(step)};
}

// --- halving-doubling -------------------------------------------------------

// H, then each half of the one before, rounded up, to 1.
std::vector<int> Distances(int hosts) {
  std::vector<int> distances = {hosts};
  while (distances.back() > 1) {
    distances.push_back((distances.back() + 1) / 2);
  }
  return distances;
}

HostPlan HalvingReduce(int host, int hosts) {
  const std::vector<int> distances = Distances(hosts);
  HostPlan plan;
  for (size_t i = 1; i < distances.size(); ++i) {
    const int near = distances[i];
    const int parts = distances[i - 1] - near;
    const int next = Modulo(host + near, hosts);
    plan.push_back({{{next, next, parts}},
                    {{Modulo(host - near, hosts), host, parts}},
                    true});
  }
  return plan;
}

HostPlan DoublingSpread(int host, int hosts) {
  const std::vector<int> distances = Distances(hosts);
  HostPlan plan;
  for (size_t i = distances.size() - 1; i > 0; --i) {
    const int near = distances[i];
    const int parts = distances[i - 1] - near;
    const int next = Modulo(host + near, hosts);
    plan.push_back({{{Modulo(host - near, hosts), host, parts}},
                    {{next, next, parts}},
                    false});
  }
  return plan;
}

// --- ring -------------------------------------------------------------------

// In step i a host sends the part that lies `ahead` + i places before its own.
HostPlan RingPhase(int host, int hosts, int ahead, bool reduces) {
  const int next = Modulo(host + 1, hosts);
  const int last = Modulo(host - 1, hosts);
  HostPlan plan;
  for (int i = 0; i < hosts - 1; ++i) {
    const int part = host - ahead - i;
    plan.push_back({{{next, Modulo(part, hosts), 1}},
                    {{last, Modulo(part - 1, hosts), 1}},
                    reduces});
  }
  return plan;
}

}  // namespace

const char* HostAlgorithmName(HostAlgorithm algorithm) {
  switch (algorithm) {
    case HostAlgorithm::kDirect:
      return "direct";
    case HostAlgorithm::kHalvingDoubling:
      return "halving_doubling";
    default:
      return "ring";
  }
}

HostAlgorithm ChooseHostAlgorithm(uint64_t bytes, int hosts) {
  if (hosts <= kDirectHosts) return HostAlgorithm::kDirect;
  if (hosts > kRingHosts) return HostAlgorithm::kHalvingDoubling;
  return bytes / static_cast<uint64_t>(hosts) < kRingPartBytes
             ? HostAlgorithm::kHalvingDoubling
             : HostAlgorithm::kRing;
}

HostPlan PlanReduce(HostAlgorithm algorithm, int host, int hosts) {
  if (hosts <= 1) return {};
  switch (algorithm) {
    case HostAlgorithm::kDirect:
      return DirectReduce(host, hosts);
    case HostAlgorithm::kHalvingDoubling:
      return HalvingReduce(host, hosts);
    default:
      return RingPhase(host, hosts, 1, true);
  }
}

HostPlan PlanSpread(HostAlgorithm algorithm, int host, int hosts) {
  if (hosts <= 1) return {};
  switch (algorithm) {
    case HostAlgorithm::kDirect:
      return DirectSpread(host, hosts);
    case HostAlgorithm::kHalvingDoubling:
      return DoublingSpread(host, hosts);
    default:
      return RingPhase(host, hosts, 0, false);
  }
}

HostPlan PlanAllreduce(HostAlgorithm algorithm, int host, int hosts) {
  HostPlan plan = PlanReduce(algorithm, host, hosts);
  for (HostStep& step : PlanSpread(algorithm, host, hosts)) {
    plan.push_back(std::move(step));
  }
  return plan;
}

}  // namespace tfring
