// What is chosen for pretended costs of a machine.
#include "custom_ops/core/transport/tuning.h"

#include <limits>

#include "check.h"

namespace tfring_test {
namespace {

using tfring::ChooseTuning;
using tfring::MachineCosts;
using tfring::Tuning;

constexpr uint64_t kKib = 1024;

MachineCosts Costs(double copy_ns_per_kib, double wake_ns) {
  MachineCosts costs;
  costs.copy_ns_per_kib = copy_ns_per_kib;
  costs.wake_ns = wake_ns;
  return costs;
}

TEST(UsualCosts) {
  const Tuning two = ChooseTuning(Costs(25, 5000), 2, false);
  EXPECT_EQ(two.chunk_bytes, 256 * kKib);
  EXPECT_EQ(two.depth, 7u);
  EXPECT_EQ(two.direct_bytes, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(two.spin_ns, 50000);
  const Tuning crowded = ChooseTuning(Costs(25, 5000), 4, true);
  EXPECT_EQ(crowded.chunk_bytes, 128 * kKib);
  EXPECT_EQ(crowded.depth, 4u);
  EXPECT_EQ(crowded.direct_bytes, 64 * kKib);
  EXPECT_EQ(crowded.spin_ns, 100000);
}

TEST(DearWakeUpsMakeLargerChunks) {
  EXPECT_EQ(ChooseTuning(Costs(25, 15000), 4, true).chunk_bytes, 256 * kKib);
  EXPECT_EQ(ChooseTuning(Costs(25, 15000), 4, true).direct_bytes, 128 * kKib);
  EXPECT_EQ(ChooseTuning(Costs(25, 30000), 2, false).chunk_bytes, 512 * kKib);
  EXPECT_EQ(ChooseTuning(Costs(25, 500), 4, true).direct_bytes, 8 * kKib);
}

TEST(ManyRanksShareTheWorkSooner) {
  const MachineCosts costs = Costs(25, 5000);
  EXPECT_TRUE(ChooseTuning(costs, 64, true).direct_bytes <
              ChooseTuning(costs, 4, true).direct_bytes);
  EXPECT_TRUE(ChooseTuning(costs, 4, false).direct_bytes <
              ChooseTuning(costs, 4, true).direct_bytes);
}

// Also a measurement that an interruption has spoilt.
TEST(StaysWithinLimits) {
  for (const double copy : {0.0, 1.0, 25.0, 1e6}) {
    for (const double wake : {0.0, 1e3, 1e5, 1e9}) {
      for (const int ranks : {1, 2, 3, 256}) {
        for (const bool crowded : {false, true}) {
          CASE("copy ", copy, " wake ", wake, " ranks ", ranks, " crowded ",
               crowded);
          const Tuning tuning = ChooseTuning(Costs(copy, wake), ranks, crowded);
          EXPECT_EQ(tuning.chunk_bytes % 64, 0u);
          EXPECT_TRUE(tuning.depth >= 2);
          EXPECT_TRUE(tuning.chunk_bytes * tuning.depth < 2048 * kKib);
          EXPECT_TRUE(tuning.direct_bytes >= 4 * kKib);
          EXPECT_TRUE(tuning.spin_ns >= 5000 && tuning.spin_ns <= 100000);
        }
      }
    }
  }
}

TEST(MeasuresSomethingPlausible) {
  const MachineCosts& costs = tfring::MeasuredCosts();
  EXPECT_TRUE(costs.copy_ns_per_kib > 1 && costs.copy_ns_per_kib < 1e5);
  EXPECT_TRUE(costs.wake_ns > 100 && costs.wake_ns < 1e9);
  EXPECT_TRUE(&costs == &tfring::MeasuredCosts());
}

}  // namespace
}  // namespace tfring_test
