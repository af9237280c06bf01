// TCP sockets with deadlines. Every descriptor is non-blocking and closed on
// exec; errors name the peer.
#ifndef TFRING_CORE_TRANSPORT_SOCKET_H_
#define TFRING_CORE_TRANSPORT_SOCKET_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/status.h"

namespace tfring {

// One connection. Sending from one thread while another receives is safe.
class Socket {
 public:
  Socket() = default;
  // Takes over a connected descriptor and makes it non-blocking.
  explicit Socket(int fd);
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept
      : fd_(other.Release()), peer_(std::move(other.peer_)) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Connects to "host:port" or "[v6]:port". A refused connection is tried
  // again until the deadline, since the peer may start later. UNAVAILABLE
  // when that fails, INVALID_ARGUMENT when the address cannot be read.
  // Resolving the name is left to libc, which knows no deadline.
  static Status Connect(const std::string& address, Deadline deadline,
                        Socket* out);

  // DEADLINE_EXCEEDED if time runs out, UNAVAILABLE if the connection fails or
  // the peer closes it. After an error an unknown part has been transferred.
  Status SendAll(const void* data, size_t size, Deadline deadline);
  Status RecvAll(void* data, size_t size, Deadline deadline);

  // Finds a dead peer after about idle_s + interval_s * count seconds, whether
  // the connection is idle or has unacknowledged data.
  Status SetKeepalive(int idle_s, int interval_s, int count);

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives up ownership of the descriptor.
  int Release() { return std::exchange(fd_, -1); }
  void Close();
  // Wakes whoever waits on this connection, here and at the peer.
  void Shutdown();

  // The numeric address (no port) of this end; "" if it cannot be told.
  std::string LocalHost() const;
  // "host:port" of the other end, known for the life of the socket.
  const std::string& PeerName() const { return peer_; }

 private:
  Status Wait(short events, Deadline deadline, const char* doing) const;

  int fd_ = -1;
  std::string peer_;
};

// A listening socket.
class Listener {
 public:
  Listener() = default;
  ~Listener() { Close(); }
  Listener(Listener&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}
  Listener& operator=(Listener&& other) noexcept;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // `host` "" listens on all interfaces, IPv4 and (where present) IPv6; `port`
  // 0 takes any free one.
  static Status Open(const std::string& host, int port, Listener* out);

  int port() const { return port_; }
  int fd() const { return fd_; }
  // DEADLINE_EXCEEDED if nobody comes. A deadline that has expired still takes
  // a connection that is waiting.
  Status Accept(Deadline deadline, Socket* out);
  void Close();

 private:
  int fd_ = -1;
  int port_ = 0;
};

// The numeric addresses, IPv4 first, of the interfaces that are up: those
// named in the comma list, or all but loopback ones if it is empty. Link-local
// IPv6 addresses are left out. INVALID_ARGUMENT if a name has no address.
Status InterfaceAddresses(const std::string& names,
                          std::vector<std::string>* addresses);

// "host:port", or "[host]:port" for an IPv6 address.
std::string JoinHostPort(const std::string& host, int port);

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_SOCKET_H_
