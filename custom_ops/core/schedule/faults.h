// Faults on demand, so that tests need no luck and no sleeping: the engine's
// test seam, set by tfr_config.faults (TFRING_FAULTS).
//
// - "rank=1 collective=5 do=kill": SIGKILL before the sixth collective
// - "rank=1 collective=5 chunk=2 do=kill": inside it, after chunk 2
// - "rank=1 collective=5 do=delay:200": sleep 200 ms before it
// - "rank=1 collective=5 do=late:200": submit the sixth 200 ms later
// - "rank=1 collective=5 do=stop": SIGSTOP (a rank that hangs)
// - "rank=1 set=2 collective=5 do=kill": the sixth of process set 2
// Several are separated by ";". Collectives count from 0 in the order run, in
// each process set for itself; without `set` those of all ranks (set 0) count.
#ifndef TFRING_CORE_SCHEDULE_FAULTS_H_
#define TFRING_CORE_SCHEDULE_FAULTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/common/status.h"

namespace tfring {

class Faults {
 public:
  // Keeps those of `rank`. INVALID_ARGUMENT for a text it cannot read.
  static Status Parse(const std::string& text, int rank, Faults* out);
  // Those of one process set.
  Faults Of(int set) const;

  bool any() const { return !faults_.empty(); }
  void AtSubmission(uint64_t collective) { Fire(collective, kSubmission); }
  void AtCollective(uint64_t collective) {
    if (any()) Fire(collective, kBefore);
  }
  void AtChunk(uint64_t collective, uint64_t chunk) {
    if (any()) Fire(collective, static_cast<int64_t>(chunk));
  }

 private:
  static constexpr int64_t kBefore = -1;
  static constexpr int64_t kSubmission = -2;

  struct Fault {
    int64_t rank = -1;
    int64_t set = 0;
    int64_t collective = -1;
    int64_t chunk = kBefore;
    std::string action;
    int64_t milliseconds = 0;
  };

  static Status ParseOne(const std::string& text, Fault* fault);
  void Fire(uint64_t collective, int64_t chunk);

  std::vector<Fault> faults_;
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_FAULTS_H_
