// Opens the job's connections during bootstrap, in both directions at once.
#ifndef TFRING_CORE_RENDEZVOUS_CONNECT_H_
#define TFRING_CORE_RENDEZVOUS_CONNECT_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/handshake.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

struct ConnectOptions {
  std::string secret;
  uint64_t session = 0;  // both ends must name the same
  uint32_t rank = 0;
  Deadline deadline = Deadline::Never();
  // Asked now and then: is it of no more use to go on? May be empty.
  std::function<bool()> cancelled;

  bool over() const { return deadline.expired() || (cancelled && cancelled()); }
};

// "host:port" of each host.
std::vector<std::string> AddressesOf(const std::vector<std::string>& hosts,
                                     int port);

// One connection from the view of the end that waits for it.
struct Expected {
  uint32_t purpose;
  uint32_t rank;         // at the other end
  uint32_t channel = 0;  // of several for one purpose
  bool operator<(const Expected& other) const {
    return std::tie(purpose, rank, channel) <
           std::tie(other.purpose, other.rank, other.channel);
  }
};

// Connects to rank `peer.rank`, which listens on one of `addresses`
// ("host:port"), trying them in turn until the deadline.
Status ConnectToRank(const ConnectOptions& options, const Expected& peer,
                     const std::vector<std::string>& addresses, Socket* out);

// All data connections to the leader of another host, one per entry of `out`.
Status ConnectLanes(const ConnectOptions& options, uint32_t leader,
                    const std::vector<std::string>& addresses,
                    std::vector<Socket>* out);
// ... from the view of that leader.
void ExpectLanes(uint32_t rank, size_t lanes, std::set<Expected>* expected);

struct Accepted {
  Expected who;
  Socket socket;
};

// Accepts connections until all of `expected` have come. Strangers are turned
// away and cannot hold up the others.
Status AcceptRanks(const ConnectOptions& options, Listener* listener,
                   std::set<Expected> expected, std::vector<Accepted>* out);

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_CONNECT_H_
