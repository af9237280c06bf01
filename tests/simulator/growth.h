// The cases of docs/growth.md.
#ifndef TFRING_TESTS_SIMULATOR_GROWTH_H_
#define TFRING_TESTS_SIMULATOR_GROWTH_H_

#include "arguments.h"

namespace simulator {

// Prints lines of comma-separated values, one for each model, link, number of
// ranks and way to start the buckets. The costs are those of `arguments`.
void ShowGrowth(const Arguments& arguments);

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_GROWTH_H_
