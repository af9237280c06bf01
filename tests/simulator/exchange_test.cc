// What the engine's plans cost on a pretended network.
#include "exchange.h"

#include <algorithm>

#include "check.h"

namespace simulator {
namespace {

using tfring::HostAlgorithm;
using tfring::HostMove;
using tfring::HostPlan;
using tfring::PlanAllreduce;

constexpr HostAlgorithm kAlgorithms[] = {HostAlgorithm::kDirect,
                                         HostAlgorithm::kHalvingDoubling,
                                         HostAlgorithm::kRing};
constexpr uint64_t kMiB = 1 << 20;

CostModel Network(int hosts, double link_gbit) {
  CostModel costs;
  costs.hosts = hosts;
  costs.link_gbit = link_gbit;
  return costs;
}

// As if host 0 were `host`.
std::vector<HostMove> Moved(std::vector<HostMove> moves, int host, int hosts) {
  for (HostMove& move : moves) {
    move.peer = (move.peer + host) % hosts;
    move.first = (move.first + host) % hosts;
  }
  return moves;
}

bool Equal(std::vector<HostMove> a, std::vector<HostMove> b) {
  const auto less = [](const HostMove& x, const HostMove& y) {
    return x.peer < y.peer;
  };
  std::sort(a.begin(), a.end(), less);
  std::sort(b.begin(), b.end(), less);
  const auto same = [](const HostMove& x, const HostMove& y) {
    return x.peer == y.peer && x.first == y.first && x.count == y.count;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

// So it is enough to look at one host.
TEST(AllHostsDoTheSame) {
  for (const HostAlgorithm algorithm : kAlgorithms) {
    for (const int hosts : {2, 3, 5, 8, 16}) {
      CASE(check::Join(HostAlgorithmName(algorithm), ", ", hosts, " hosts"));
      const HostPlan first = PlanAllreduce(algorithm, 0, hosts);
      for (int h = 1; h < hosts; ++h) {
        const HostPlan plan = PlanAllreduce(algorithm, h, hosts);
        ASSERT_EQ(plan.size(), first.size());
        for (size_t s = 0; s < plan.size(); ++s) {
          EXPECT_TRUE(Equal(plan[s].sends, Moved(first[s].sends, h, hosts)));
          EXPECT_TRUE(
              Equal(plan[s].receives, Moved(first[s].receives, h, hosts)));
          EXPECT_EQ(plan[s].reduces, first[s].reduces);
        }
      }
    }
  }
}

TEST(HostsSendNoMoreThanTheyMust) {
  for (const HostAlgorithm algorithm : kAlgorithms) {
    for (const int hosts : {2, 4, 16, 64}) {
      CASE(check::Join(HostAlgorithmName(algorithm), ", ", hosts, " hosts"));
      Exchange exchange(Network(hosts, 10), algorithm);
      const auto most = static_cast<uint64_t>(hosts - 1);
      EXPECT_EQ(exchange.Of(64 * kMiB).wire_bytes,
                2 * most * 64 * kMiB / static_cast<uint64_t>(hosts));
    }
  }
}

TEST(ASlowLinkIsKeptBusy) {
  for (const int hosts : {2, 3, 4, 8, 64}) {
    CASE(check::Join(hosts, " hosts"));
    const CostModel costs = Network(hosts, 1);
    Exchange exchange(costs);
    const Prediction& one = exchange.Of(64 * kMiB);
    const Nanoseconds bound = costs.WireNs(one.wire_bytes);
    EXPECT_TRUE(one.time >= bound);
    EXPECT_LT(one.time, bound + bound / 20);
  }
}

TEST(LeadersFillALinkThatOneCannot) {
  CostModel costs = Network(8, 100);
  costs.ranks_per_host = 8;
  costs.leaders = 1;
  const Nanoseconds one = Exchange(costs).Of(64 * kMiB).time;
  costs.leaders = 8;
  const Nanoseconds eight = Exchange(costs).Of(64 * kMiB).time;
  EXPECT_LT(2 * eight, one);  // all ranks copy in and out
  EXPECT_TRUE(eight >= costs.WireNs(Exchange(costs).Of(64 * kMiB).wire_bytes));
}

// Within a quarter of the best, or 0.2 ms.
TEST(TheEngineChoosesWell) {
  for (const int hosts : {2, 4, 8, 16, 64, 512}) {
    for (const uint64_t bytes : {uint64_t{4096}, kMiB, 32 * kMiB}) {
      CASE(check::Join(hosts, " hosts, ", bytes, " bytes"));
      const CostModel costs = Network(hosts, 100);
      Nanoseconds best = INT64_MAX;
      for (const HostAlgorithm algorithm : kAlgorithms) {
        best = std::min(best, Exchange(costs, algorithm).Of(bytes).time);
      }
      Exchange exchange(costs);
      EXPECT_LT(exchange.Of(bytes).time, best + best / 4 + 200000);
    }
  }
}

}  // namespace
}  // namespace simulator
