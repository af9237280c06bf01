// Reduction over several hosts: the part that allreduce and reducescatter
// share.
//
// A chunk has a part for every host, and each part is a list of pieces of
// tensors. The ranks of a host stage their pieces in slots and reduce shares of
// them into the host's contribution, which is made of partial results
// (reduction.h says in what dtype). The leaders
// exchange contributions as a plan says (host_algorithm.h): the owner of a part
// ends with its result; an allreduce then spreads the results. Several chunks
// are under way at a time, each at a step of its own, so that links stay busy
// while the leader copies and adds.
//
// Hosts of several ranks have several leaders, which take turns at chunks: each
// moves and adds its own, over its own connections to the leader of the same
// number on other hosts. Which one has a chunk changes no bit.
//
// (H-1)/H of the partial results' bytes per host to reduce, (H-1)/H of the
// elements' bytes to spread.
//
// A rank that is alone on its host needs no staging where pieces are sent as
// they are: they leave from the inputs, and results arrive in the outputs.
#ifndef TFRING_CORE_COLLECTIVES_HOST_REDUCE_H_
#define TFRING_CORE_COLLECTIVES_HOST_REDUCE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/collectives/host_algorithm.h"
#include "custom_ops/core/collectives/host_division.h"
#include "custom_ops/core/collectives/reduction.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

struct HostReduceOptions {
  HostAlgorithm algorithm = HostAlgorithm::kDirect;
  bool spreads = false;  // every host gets every part
  uint64_t steps = 0;    // chunks
  // The pieces of a chunk; all ranks divide alike.
  std::function<void(uint64_t step, HostDivision* division)> divide;
};

class HostReducer {
 public:
  HostReducer(DataPlane* plane, const Operation& operation,
              Reduction* reduction, HostReduceOptions options);

  Status Run();

 private:
  // One chunk on its way.
  struct Flight {
    HostDivision division;
    uint64_t step = 0;
    uint64_t chunk = 0;
    bool under_way = false;
    size_t next = 0;              // the plan's step that is waited for
    std::vector<int> receives;    // left of each step of the plan
    int sends = 0;                // left
    std::vector<char*> received;  // partial results, by receive of the plan
    // Where this host's sum of each part so far is; null: its contribution.
    std::vector<const char*> held;
  };

  Status CopyIn(uint64_t step, uint64_t chunk);
  Status ReducePartials(uint64_t chunk);
  Status Post(uint64_t chunk);
  Status Finish(uint64_t chunk);
  Status CopyOut(uint64_t chunk);

  Flight& FlightOf(uint64_t chunk) { return flights_[chunk % flights_.size()]; }
  bool IsStaged(const HostPiece& piece) const;
  bool IsStraight(const HostPiece& piece) const;
  bool LandsInOutput(const HostPiece& piece) const;
  bool DoneFlight(const Flight& flight) const;

  size_t MemoryPlaceOf(const Flight& flight) const;
  void PostReceives(Flight* flight);
  void PostSends(Flight* flight);
  void AdvanceFlights();
  void Advance(Flight* flight);
  void Complete(Flight* flight);
  void Add(Flight* flight, int part);
  void AddPiece(const Flight& flight, const HostPiece& piece, uint64_t begin,
                bool last, char* out);
  const void* HeldOf(const Flight& flight, int part,
                     const HostPiece& piece) const;
  void AppendHeld(const Flight& flight, int part, std::vector<iovec>* list);
  void AppendResult(const Flight& flight, int part, char* padding,
                    std::vector<iovec>* list);
  bool HostIsActive(int host) const;

  DataPlane* const plane_;
  const Operation& operation_;
  const HostReduceOptions options_;
  const GroupMembers& members_;
  Reduction* const reduction_;
  const bool alone_;   // on its host
  const bool active_;  // has something to give
  HostPlan plan_;
  size_t reduce_steps_;  // of the plan; the others spread
  std::vector<Flight> flights_;
  // What arrived for one part, by the host that it came from.
  std::vector<const char*> arrived_;
  std::vector<const void*> sources_;
  std::array<char, kStreamAlignment> dump_;  // padding that arrives
};

// The algorithm for a vector of `bytes` bytes: the one that was set, or that
// suits its size. With joined ranks, direct: it leaves out hosts that have
// nothing to give.
HostAlgorithm AlgorithmFor(const DataPlane& plane, uint64_t bytes);

// Whether inputs go straight to where they are added up (Reduction::kInputs).
bool SendsInputs(const DataPlane& plane, HostAlgorithm algorithm);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_HOST_REDUCE_H_
