// Addresses: what a name stands for, and what sockets are bound to.
#ifndef TFRING_CORE_TRANSPORT_ENDPOINT_H_
#define TFRING_CORE_TRANSPORT_ENDPOINT_H_

#include <sys/socket.h>

#include <string>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/status.h"

namespace tfring {

// An IPv4 or IPv6 address and port.
struct Endpoint {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }

  std::string Host() const;
  int Port() const;
};

// Of a socket; without family or port if it has none.
Endpoint LocalEndpoint(int fd);
Endpoint PeerEndpoint(int fd);

// INVALID_ARGUMENT unless `address` is "host:port" or "[v6]:port".
Status SplitAddress(const std::string& address, std::string* host,
                    std::string* port);

// The endpoints that a name stands for. `retry` says whether asking again may
// help.
Status Resolve(const std::string& host, const std::string& port, int flags,
               std::vector<Endpoint>* endpoints, bool* retry);

// setsockopt(2) of an int.
Status SetOption(int fd, int level, int option, int value, const char* name);

// poll(2) of one descriptor: positive when ready, 0 when time ran out, -1 with
// errno on an error.
int PollOne(int fd, short events, Deadline deadline);

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_ENDPOINT_H_
