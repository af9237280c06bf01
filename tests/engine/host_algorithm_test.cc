// Plans of all hosts, carried out on symbols: who has added what to what.
#include "custom_ops/core/collectives/host_algorithm.h"

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "check.h"

namespace tfring {
namespace {

constexpr HostAlgorithm kAll[] = {HostAlgorithm::kDirect,
                                  HostAlgorithm::kHalvingDoubling,
                                  HostAlgorithm::kRing};
const std::vector<int> kHosts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 64};

// How often each host's own part is in a value.
using Symbol = std::vector<int>;

// What one message carries, by (step, from, to).
using Wire = std::map<std::tuple<size_t, int, int>, std::vector<Symbol>>;

class Hosts {
 public:
  explicit Hosts(int hosts) : hosts_(hosts) {
    const auto size = static_cast<size_t>(hosts);
    values_.assign(size, std::vector<Symbol>(size, Symbol(size)));
    sent_.assign(size, 0);
    for (size_t h = 0; h < size; ++h) {
      for (Symbol& part : values_[h]) part[h] = 1;
    }
  }

  void Run(const std::vector<HostPlan>& plans) {
    for (size_t step = 0; step < plans.front().size(); ++step) {
      for (int h = 0; h < hosts_; ++h) Send(step, h, plans);
      for (int h = 0; h < hosts_; ++h) Receive(step, h, plans);
      EXPECT_TRUE(wire_.empty());  // nothing was sent that nobody expects
    }
  }

  const Symbol& value(int host, int part) const {
    return values_[static_cast<size_t>(host)][static_cast<size_t>(part)];
  }
  int sent(int host) const { return sent_[static_cast<size_t>(host)]; }

 private:
  Symbol& At(int host, int part) {
    return values_[static_cast<size_t>(host)]
                  [static_cast<size_t>(part % hosts_)];
  }

  void Send(size_t step, int host, const std::vector<HostPlan>& plans) {
    for (const HostMove& move : plans[static_cast<size_t>(host)][step].sends) {
      std::vector<Symbol>& message = wire_[{step, host, move.peer}];
      EXPECT_TRUE(message.empty());  // one message a step, peer and direction
      for (int i = 0; i < move.count; ++i) {
        message.push_back(At(host, move.first + i));
      }
      sent_[static_cast<size_t>(host)] += move.count;
    }
  }

  void Receive(size_t step, int host, const std::vector<HostPlan>& plans) {
    const HostStep& mine = plans[static_cast<size_t>(host)][step];
    for (const HostMove& move : mine.receives) {
      const auto found = wire_.find({step, move.peer, host});
      ASSERT_TRUE(found != wire_.end());
      ASSERT_EQ(found->second.size(), static_cast<size_t>(move.count));
      for (int i = 0; i < move.count; ++i) {
        const Symbol& got = found->second[static_cast<size_t>(i)];
        Symbol& held = At(host, move.first + i);
        for (size_t h = 0; h < held.size(); ++h) {
          held[h] = (mine.reduces ? held[h] : 0) + got[h];
        }
      }
      wire_.erase(found);
    }
  }

  const int hosts_;
  std::vector<std::vector<Symbol>> values_;  // [host][part]
  std::vector<int> sent_;                    // parts, by host
  Wire wire_;
};

template <typename Plan>
std::vector<HostPlan> PlansOf(Plan plan, HostAlgorithm algorithm, int hosts) {
  std::vector<HostPlan> plans;
  for (int h = 0; h < hosts; ++h) plans.push_back(plan(algorithm, h, hosts));
  for (const HostPlan& one : plans) EXPECT_EQ(one.size(), plans[0].size());
  return plans;
}

template <typename F>
void ForEach(F&& f) {
  for (const HostAlgorithm algorithm : kAll) {
    for (const int hosts : kHosts) {
      CASE(HostAlgorithmName(algorithm), ", ", hosts, " hosts");
      f(algorithm, hosts);
    }
  }
}

TEST(ReduceGivesEachHostItsPartOnceFromAll) {
  ForEach([](HostAlgorithm algorithm, int count) {
    Hosts hosts(count);
    hosts.Run(PlansOf(PlanReduce, algorithm, count));
    const Symbol all(static_cast<size_t>(count), 1);
    for (int h = 0; h < count; ++h) EXPECT_TRUE(hosts.value(h, h) == all);
  });
}

TEST(AllreduceGivesEveryHostEveryPartOnceFromAll) {
  ForEach([](HostAlgorithm algorithm, int count) {
    Hosts hosts(count);
    hosts.Run(PlansOf(PlanAllreduce, algorithm, count));
    const Symbol all(static_cast<size_t>(count), 1);
    for (int h = 0; h < count; ++h) {
      for (int p = 0; p < count; ++p) EXPECT_TRUE(hosts.value(h, p) == all);
    }
  });
}

TEST(SpreadCopiesEachHostsPart) {
  ForEach([](HostAlgorithm algorithm, int count) {
    Hosts hosts(count);
    hosts.Run(PlansOf(PlanSpread, algorithm, count));
    for (int p = 0; p < count; ++p) {
      for (int h = 0; h < count; ++h) {
        EXPECT_TRUE(hosts.value(h, p) == hosts.value(p, p));
      }
    }
  });
}

TEST(EveryHostSendsTheLeastThatIsPossible) {
  ForEach([](HostAlgorithm algorithm, int count) {
    Hosts hosts(count);
    hosts.Run(PlansOf(PlanAllreduce, algorithm, count));
    for (int h = 0; h < count; ++h) {
      EXPECT_EQ(hosts.sent(h), 2 * (count - 1));
    }
  });
}

size_t StepsOf(HostAlgorithm algorithm, int hosts) {
  return PlanReduce(algorithm, 0, hosts).size();
}

TEST(StepsAreAsFewAsTheHeaderSays) {
  EXPECT_EQ(StepsOf(HostAlgorithm::kDirect, 7), size_t{1});
  EXPECT_EQ(StepsOf(HostAlgorithm::kHalvingDoubling, 7), size_t{3});
  EXPECT_EQ(StepsOf(HostAlgorithm::kHalvingDoubling, 8), size_t{3});
  EXPECT_EQ(StepsOf(HostAlgorithm::kHalvingDoubling, 9), size_t{4});
  EXPECT_EQ(StepsOf(HostAlgorithm::kRing, 7), size_t{6});
}

TEST(ChoiceDependsOnSizeAndHosts) {
  EXPECT_TRUE(ChooseHostAlgorithm(uint64_t{1} << 30, 4) ==
              HostAlgorithm::kDirect);
  EXPECT_TRUE(ChooseHostAlgorithm(4096, 64) == HostAlgorithm::kHalvingDoubling);
  EXPECT_TRUE(ChooseHostAlgorithm(uint64_t{1} << 30, 12) ==
              HostAlgorithm::kRing);
  EXPECT_TRUE(ChooseHostAlgorithm(uint64_t{1} << 30, 64) ==
              HostAlgorithm::kHalvingDoubling);
}

}  // namespace
}  // namespace tfring
