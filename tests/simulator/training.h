// A training step of pretended ranks: each computes, submits its buckets while
// the backward pass produces them (or after it), and goes on when all are
// reduced. Agreement and order are the engine's own (pretended_world.h).
#ifndef TFRING_TESTS_SIMULATOR_TRAINING_H_
#define TFRING_TESTS_SIMULATOR_TRAINING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cost_model.h"
#include "event_clock.h"

namespace simulator {

struct Model {
  std::string name;
  uint64_t gradient_bytes = 0;
  uint64_t bucket_bytes = 32 << 20;
  double forward_ms = 0;
  double backward_ms = 0;
};

struct StepCost {
  double step_ms = 0;        // the last of the simulated ones
  double not_hidden_ms = 0;  // of it, beyond forward and backward pass
  double agreement_ms = 0;   // rank 0's thread, for one step's messages
  uint64_t messages = 0;     // that the last host sends and gets, a step
  uint64_t buckets = 0;

  double efficiency() const { return 1 - not_hidden_ms / step_ms; }
};

struct StepOptions {
  bool overlap = true;  // buckets start in the backward pass
  int steps = 3;
  double skew_ms = 0;  // ranks are late by up to this much, at random
  unsigned seed = 1;
};

// Gradients are taken to come evenly over the time of the backward pass.
StepCost PredictStep(const CostModel& costs, const Model& model,
                     const StepOptions& options);

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_TRAINING_H_
