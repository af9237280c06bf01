// The exchange of chunks whose bytes only move: one message to and from every
// other host that has or wants some, in one step.
#ifndef TFRING_CORE_COLLECTIVES_HOST_TRANSFERS_H_
#define TFRING_CORE_COLLECTIVES_HOST_TRANSFERS_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"

namespace tfring {

class HostTransfers {
 public:
  explicit HostTransfers(DataPlane* plane)
      : plane_(plane), left_(plane->local().depth()) {}

  // Messages without a byte are not sent.
  void Receive(int host, uint64_t chunk, std::vector<iovec> parts);
  void Send(int host, uint64_t chunk, const std::vector<iovec>& parts);
  // Until all messages of the chunk have come and gone.
  Status Await(uint64_t chunk);

 private:
  int& LeftOf(uint64_t chunk) { return left_[chunk % left_.size()]; }

  DataPlane* const plane_;
  std::vector<int> left_;  // by the chunk's place
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_HOST_TRANSFERS_H_
