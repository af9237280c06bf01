// Reduction of one chunk over several hosts: the part that allreduce and
// reducescatter share.
//
// A chunk is a list of pieces of tensors, staged alike in the slots of all
// ranks, and each host owns some of them. The ranks of a host reduce their
// shares of all pieces into accumulators, packed host by host. The leaders
// swap these, so that each has all hosts' accumulators of the pieces that its
// host owns, and reduce them in host order into the result chunk.
//
// (H-1)/H of the accumulators' bytes per leader, one step. Accumulators
// travel, so 16-bit sums are rounded once.
#ifndef TFRING_CORE_COLLECTIVES_HOST_REDUCE_H_
#define TFRING_CORE_COLLECTIVES_HOST_REDUCE_H_

#include <cstdint>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/collectives/reduction.h"
#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// A run of elements of one tensor.
struct HostPiece {
  size_t tensor;
  uint64_t at;      // bytes from the chunk's begin, as staged
  uint64_t packed;  // bytes from the begin of the packed accumulators
  uint64_t count;   // elements
};

// The pieces of one chunk by the host that owns them. Every rank computes the
// same division.
class HostDivision {
 public:
  // Pieces added from now on are the next host's.
  void BeginHost() {
    pieces_.emplace_back();
    packed_.push_back(packed_.back());
  }
  // `partial_bytes`: of an element on its way between hosts.
  void Add(size_t tensor, uint64_t at, uint64_t count, uint64_t partial_bytes);

  const std::vector<std::vector<HostPiece>>& pieces() const { return pieces_; }
  // Where a host's accumulators lie among all.
  Range PackedOf(size_t host) const {
    return {packed_[host], packed_[host + 1]};
  }

 private:
  std::vector<std::vector<HostPiece>> pieces_;
  std::vector<uint64_t> packed_{0};
};

class HostReducer {
 public:
  HostReducer(DataPlane* plane, const Operation& operation,
              Reduction* reduction)
      : plane_(plane), operation_(operation), reduction_(reduction) {}

  // This rank's share of every piece, from slots into accumulators.
  Status ReducePartials(const HostDivision& division, uint64_t chunk);
  // Leader: swaps accumulators, reduces the own host's pieces to the result.
  Status ReduceOwn(const HostDivision& division, uint64_t chunk);
  // Waits until the leader has exchanged chunk numbers below `value`.
  Status AwaitLeader(uint64_t value);

 private:
  Status Swap(const HostDivision& division, uint64_t chunk);
  void Finish(const HostDivision& division, uint64_t chunk);
  std::vector<size_t> ActiveHosts() const;

  DataPlane* const plane_;
  const Operation& operation_;
  Reduction* const reduction_;
  std::vector<std::vector<char>> received_;  // accumulators of other hosts
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_HOST_REDUCE_H_
