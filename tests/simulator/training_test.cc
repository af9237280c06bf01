// Training steps of pretended ranks.
#include "training.h"

#include "check.h"

namespace simulator {
namespace {

CostModel Job(int hosts, int ranks_per_host) {
  CostModel costs;
  costs.hosts = hosts;
  costs.ranks_per_host = ranks_per_host;
  return costs;
}

Model SmallModel() {
  Model model;
  model.gradient_bytes = 100 << 20;
  model.forward_ms = 50;
  model.backward_ms = 100;
  return model;
}

TEST(OverlapHidesAllButTheLastBucket) {
  for (const int hosts : {1, 2, 64}) {
    CASE(check::Join(hosts, " hosts"));
    StepOptions after;
    after.overlap = false;
    const StepCost late = PredictStep(Job(hosts, 8), SmallModel(), after);
    const StepCost early = PredictStep(Job(hosts, 8), SmallModel(), {});
    EXPECT_TRUE(early.not_hidden_ms > 0);
    EXPECT_LT(early.not_hidden_ms, late.not_hidden_ms);
    EXPECT_LT(early.step_ms, late.step_ms);
  }
}

TEST(AHostSendsAndGetsOneMessageForABucket) {
  for (const int hosts : {8, 64, 512}) {
    CASE(check::Join(hosts * 8, " ranks"));
    const StepCost cost = PredictStep(Job(hosts, 8), SmallModel(), {});
    EXPECT_EQ(cost.buckets, 4u);
    EXPECT_EQ(cost.messages, 2 * cost.buckets);
  }
}

TEST(ARankThatIsLateDelaysAllByAsMuch) {
  StepOptions late;
  late.skew_ms = 40;
  const StepCost cost = PredictStep(Job(64, 8), SmallModel(), late);
  const StepCost alike = PredictStep(Job(64, 8), SmallModel(), {});
  EXPECT_TRUE(cost.step_ms > alike.step_ms + 30);
  EXPECT_TRUE(cost.step_ms <= alike.step_ms + 41);
}

}  // namespace
}  // namespace simulator
