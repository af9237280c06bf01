// What agreement costs rank 0: measured on its real side channel, over real
// connections of this machine.
#ifndef TFRING_TESTS_SIMULATOR_HUB_COST_H_
#define TFRING_TESTS_SIMULATOR_HUB_COST_H_

namespace simulator {

struct HubCost {
  double processor_us = 0;  // rank 0's thread, for one collective
  double time_us = 0;       // from the first host's message to the last answer
  int messages = 0;         // of one collective, both ways
};

// The median over `rounds` collectives of a job whose ranks are all connected.
// Needs two descriptors for each rank.
HubCost MeasureHub(int hosts, int ranks_per_host, int rounds);

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_HUB_COST_H_
