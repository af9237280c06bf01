// How the ranks of one host divide their work, chosen from what the machine
// was measured to cost. The rank that makes a group's memory chooses, the
// others read the choice from there. No choice changes a bit of a result.
#ifndef TFRING_CORE_TRANSPORT_TUNING_H_
#define TFRING_CORE_TRANSPORT_TUNING_H_

#include <cstdint>

namespace tfring {

struct MachineCosts {
  double copy_ns_per_kib = 25;  // within the caches
  double wake_ns = 5000;        // until a thread that sleeps runs again
};

// Measures for less than two milliseconds, once per process.
const MachineCosts& MeasuredCosts();

struct Tuning {
  uint64_t chunk_bytes = 0;
  uint64_t depth = 0;         // chunks of each rank that are under way
  uint64_t direct_bytes = 0;  // up to here, every rank reduces everything
  int64_t spin_ns = 0;        // to look before sleeping
};

// `ranks` share the memory; `crowded`: the host has more than processors.
Tuning ChooseTuning(const MachineCosts& costs, int ranks, bool crowded);

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_TUNING_H_
