// Data connections between hosts: one per pair, held by the hosts' leaders.
#ifndef TFRING_CORE_TRANSPORT_MESH_H_
#define TFRING_CORE_TRANSPORT_MESH_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

// What goes to and comes from one other host in one exchange.
struct Transfer {
  int host = 0;
  std::vector<iovec> send;
  std::vector<iovec> receive;
};

class Mesh {
 public:
  // `sockets[h]` leads to host h; the own entry is not used. `labels[h]` names
  // it in errors.
  Mesh(int host, std::vector<Socket> sockets, std::vector<std::string> labels,
       const Failure* failure);

  int host() const { return host_; }
  int host_count() const { return static_cast<int>(sockets_.size()); }

  // Sends and receives all transfers at once, so that no pair can block each
  // other. Every message starts with `tag` and its length; a peer that sends
  // another is an error. Ends early when collective `index` cannot finish.
  // DEADLINE_EXCEEDED names the hosts that did not move.
  Status Exchange(uint64_t tag, std::vector<Transfer> transfers, uint64_t index,
                  Deadline deadline);

  uint64_t bytes_sent() const {
    return bytes_sent_.load(std::memory_order_relaxed);
  }
  void CloseAll();

 private:
  const int host_;
  std::vector<Socket> sockets_;
  const std::vector<std::string> labels_;
  const Failure* const failure_;
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_MESH_H_
