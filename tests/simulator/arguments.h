// KEY=VALUE arguments of the command line.
#ifndef TFRING_TESTS_SIMULATOR_ARGUMENTS_H_
#define TFRING_TESTS_SIMULATOR_ARGUMENTS_H_

#include "cost_model.h"
#include "training.h"

namespace simulator {

struct Arguments {
  CostModel costs;
  Model model;
  StepOptions step;

  // Throws std::invalid_argument for what it does not know.
  static Arguments Parse(int count, char** texts);
};

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_ARGUMENTS_H_
