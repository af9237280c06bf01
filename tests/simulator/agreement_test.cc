// The engine's agreement among pretended ranks: one order for all, whatever the
// disorder, and how many messages that takes.
#include <algorithm>
#include <random>

#include "check.h"
#include "pretended_world.h"

namespace simulator {
namespace {

// Takes no time: what is tested is the order.
std::vector<Nanoseconds> AtOnce(const std::vector<Nanoseconds>& begins,
                                uint64_t) {
  return std::vector<Nanoseconds>(
      begins.size(), *std::max_element(begins.begin(), begins.end()));
}

CostModel Job(int hosts, int ranks_per_host) {
  CostModel costs;
  costs.hosts = hosts;
  costs.ranks_per_host = ranks_per_host;
  return costs;
}

std::vector<Collective> Buckets(int count) {
  std::vector<Collective> buckets;
  for (int b = 0; b < count; ++b) {
    buckets.push_back({check::Join("bucket ", b), 7, 1 << 20});
  }
  return buckets;
}

// Every rank submits each step's buckets, once it is done with its last step,
// each after some random time of its own, so in an order of its own.
class Steps {
 public:
  Steps(const CostModel& costs, int buckets, int steps, unsigned seed,
        int64_t most_delay_ns)
      : costs_(costs),
        buckets_(Buckets(buckets)),
        steps_(steps),
        random_(seed),
        delay_(0, most_delay_ns),
        world_(costs, &clock_, AtOnce),
        done_(static_cast<size_t>(costs.hosts)) {
    world_.OnDone([this](int host, const Collective&) {
      uint64_t& done = done_[static_cast<size_t>(host)];
      if (++done % buckets_.size() == 0 && done < total()) StartStep(host);
    });
  }

  PretendedWorld& Run() {
    for (int h = 0; h < costs_.hosts; ++h) StartStep(h);
    clock_.Run();
    return world_;
  }
  uint64_t total() const { return buckets_.size() * steps_; }

 private:
  void StartStep(int host) {
    for (int local = 0; local < costs_.ranks_per_host; ++local) {
      const int rank = host * costs_.ranks_per_host + local;
      for (const Collective& bucket : buckets_) {
        clock_.At(clock_.now() + delay_(random_),
                  [=] { world_.Submit(rank, bucket); });
      }
    }
  }

  const CostModel costs_;
  const std::vector<Collective> buckets_;
  const uint64_t steps_;
  std::mt19937_64 random_;
  std::uniform_int_distribution<int64_t> delay_;
  EventClock clock_;
  PretendedWorld world_;
  std::vector<uint64_t> done_;
};

void ExpectOneLog(PretendedWorld& world, int hosts, uint64_t collectives) {
  EXPECT_FALSE(world.failed());
  EXPECT_EQ(world.not_pending(), 0u);
  const std::vector<uint64_t>& first = world.RunOn(0);
  EXPECT_EQ(first.size(), collectives);
  for (int h = 1; h < hosts; ++h) EXPECT_TRUE(world.RunOn(h) == first);
}

TEST(DisorderEndsInOneOrder) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (const auto& [hosts, local] : {std::pair(1, 64), {8, 8}, {64, 1}}) {
      CASE(check::Join("seed ", seed, ", ", hosts, " x ", local));
      Steps steps(Job(hosts, local), 6, 4, seed, 20000000);
      ExpectOneLog(steps.Run(), hosts, steps.total());
    }
  }
}

// Ranks of one host send nothing to each other; a host sends one message for
// each bucket and gets one, whichever of its ranks is the last.
void ExpectMessages(PretendedWorld& world, const CostModel& costs,
                    uint64_t collectives) {
  for (int h = 0; h < costs.hosts; ++h) {
    MessageCount host;
    for (int local = 0; local < costs.ranks_per_host; ++local) {
      const MessageCount& one =
          world.MessagesOf(h * costs.ranks_per_host + local);
      host.sent += one.sent;
      host.received += one.received;
      if (local > 0) EXPECT_EQ(one.received, 0u);
    }
    if (h > 0) {
      EXPECT_EQ(host.sent, collectives);
      EXPECT_EQ(host.received, collectives);
      continue;
    }
    // Rank 0 answers all other hosts; what its own host has costs a message
    // only if rank 0 itself is not the last.
    const auto others = static_cast<uint64_t>(costs.hosts - 1);
    EXPECT_TRUE(host.sent >= collectives * others);
    EXPECT_TRUE(host.sent <= collectives * (others + 1));
    EXPECT_EQ(host.received, host.sent);
  }
}

TEST(MessagesOfAStepDoNotGrowWithTheRanks) {
  for (const int hosts : {1, 8, 64, 512}) {
    const CostModel costs = Job(hosts, 8);
    CASE(check::Join(costs.ranks(), " ranks"));
    Steps steps(costs, 4, 5, 1, 1000000);
    PretendedWorld& world = steps.Run();
    ExpectOneLog(world, hosts, steps.total());
    ExpectMessages(world, costs, steps.total());
  }
}

}  // namespace
}  // namespace simulator
