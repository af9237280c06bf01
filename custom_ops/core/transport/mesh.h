// Data connections between hosts, held by the hosts' leaders: one or more
// lanes (lane.h) per pair.
//
// Messages are posted and move while the leader does something else, as far as
// the kernel's buffers reach, and otherwise whenever it waits. Every link is
// used in both directions at once, so no pair can block each other. Used by one
// thread at a time.
#ifndef TFRING_CORE_TRANSPORT_MESH_H_
#define TFRING_CORE_TRANSPORT_MESH_H_

#include <poll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/transport/lane.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

// The connections to one other host.
using HostSockets = std::vector<Socket>;

class Mesh {
 public:
  // `sockets[h]` lead to host h, equally many to each; the own entry is not
  // used. `labels[h]` names it in errors.
  Mesh(int host, std::vector<HostSockets> sockets,
       std::vector<std::string> labels, const Failure* failure);

  int host() const { return host_; }
  int host_count() const { return static_cast<int>(hosts_.size()); }

  // A message to host `host`, and the place for one from there. Messages of one
  // `stripe` (any number; the same at both ends) share a lane and keep their
  // order. `parts` stay as they are until `*pending` has been reduced by one.
  // A receive has a larger tag than all before it from that host.
  void Send(int host, uint64_t stripe, uint64_t tag,
            const std::vector<iovec>& parts, int* pending);
  void Receive(int host, uint64_t stripe, uint64_t tag,
               std::vector<iovec> parts, int* pending);

  // Moves what can be moved without waiting, for collective `index`.
  Status Poke(uint64_t index);
  // Waits until something has moved. Ends early when collective `index` cannot
  // finish. DEADLINE_EXCEEDED names the hosts that did not move; it is the only
  // error after which one may go on.
  Status Turn(uint64_t index, Deadline deadline);
  // After an error nothing moves any more, so that nothing is stored into
  // memory that is gone. Returns it.
  Status Break(Status status);

  // Memory for what comes from other hosts, kept for the next time: the
  // `place`-th piece, of at least `bytes` bytes, aligned like a cache line.
  char* Memory(size_t place, uint64_t bytes);
  uint64_t memory_bytes() const {
    return memory_bytes_.load(std::memory_order_relaxed);
  }

  uint64_t bytes_sent() const {
    return bytes_sent_.load(std::memory_order_relaxed);
  }
  void CloseAll();

 private:
  // Zero-initialised memory would be touched twice.
  struct Piece {
    std::unique_ptr<char[]> data;
    uint64_t bytes = 0;
  };

  Lane& LaneOf(int host, uint64_t stripe);
  void Watch(int event_fd);
  Status Move(uint64_t index, uint64_t* moved);
  Status MoveLanes(uint64_t* moved);
  Status ReasonOf(uint64_t index, const Status& status) const;
  std::string Stuck() const;

  const int host_;
  std::vector<std::vector<Lane>> hosts_;
  const std::vector<std::string> labels_;
  const Failure* const failure_;
  Status broken_;                // the error after which nothing moves
  std::vector<pollfd> watched_;  // lanes with work left, then the failure event
  std::vector<Piece> memory_;
  std::atomic<uint64_t> memory_bytes_{0};
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_MESH_H_
