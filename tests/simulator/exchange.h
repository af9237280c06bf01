// How long an allreduce takes once all ranks have it, predicted from the plans
// that the engine itself makes (collectives/host_algorithm.h).
//
// All hosts do the same at the same time, so one is looked at: what it sends
// arrives elsewhere when what others sent arrives here. Each leader's thread
// and the link do one thing at a time; messages under way overlap. Chunks
// go through copy in, reduce in the host, the plan's steps, copy out; as many
// as the staging memory holds are under way at once. A rank that is alone on
// its host sends from and receives into its tensors.
#ifndef TFRING_TESTS_SIMULATOR_EXCHANGE_H_
#define TFRING_TESTS_SIMULATOR_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "cost_model.h"
#include "custom_ops/core/collectives/host_algorithm.h"
#include "event_clock.h"

namespace simulator {

struct Prediction {
  tfring::HostAlgorithm algorithm = tfring::HostAlgorithm::kDirect;
  Nanoseconds time = 0;
  uint64_t messages = 0;    // that a host sends
  uint64_t wire_bytes = 0;  // that a host sends
};

class Exchange {
 public:
  // With an algorithm other than the engine's own choice, if one is given.
  explicit Exchange(
      const CostModel& costs,
      std::optional<tfring::HostAlgorithm> algorithm = std::nullopt)
      : costs_(costs), algorithm_(algorithm) {}

  // An allreduce of `bytes` bytes on each rank, begun by all at once.
  const Prediction& Of(uint64_t bytes);
  // ... begun by each host at its time; nobody is done before all have begun.
  std::vector<Nanoseconds> Ends(const std::vector<Nanoseconds>& begins,
                                uint64_t bytes);

 private:
  Prediction Predict(uint64_t bytes) const;

  const CostModel costs_;
  const std::optional<tfring::HostAlgorithm> algorithm_;
  std::map<uint64_t, Prediction> known_;
};

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_EXCHANGE_H_
