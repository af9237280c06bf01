// Listener of socket.h.
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "custom_ops/core/transport/endpoint.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {
namespace {

constexpr int kBacklog = 1024;

Status BindAndListen(int family, const sockaddr* address, socklen_t size,
                     int* fd) {
  Socket socket(
      ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Unavailable(ErrnoText(errno));
  TFR_RETURN_IF_ERROR(
      SetOption(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (family == AF_INET6) {
    const bool any = IN6_IS_ADDR_UNSPECIFIED(
        &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
    TFR_RETURN_IF_ERROR(SetOption(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY,
                                  any ? 0 : 1, "IPV6_V6ONLY"));
  }
  if (bind(socket.fd(), address, size) != 0 ||
      listen(socket.fd(), kBacklog) != 0) {
    return Unavailable(ErrnoText(errno));
  }
  *fd = socket.Release();
  return Status::Ok();
}

// All interfaces; IPv4 alone where the machine has no IPv6.
Status ListenEverywhere(int port, int* fd) {
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  if (BindAndListen(AF_INET6, reinterpret_cast<const sockaddr*>(&v6),
                    sizeof(v6), fd)
          .ok()) {
    return Status::Ok();
  }
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_ANY);
  v4.sin_port = htons(static_cast<uint16_t>(port));
  return BindAndListen(AF_INET, reinterpret_cast<const sockaddr*>(&v4),
                       sizeof(v4), fd);
}

Status ListenOn(const std::string& host, int port, int* fd) {
  std::vector<Endpoint> endpoints;
  bool retry = false;
  TFR_RETURN_IF_ERROR(
      Resolve(host, StrCat(port), AI_PASSIVE, &endpoints, &retry));
  Status status = Unavailable("the name has no address");
  for (const Endpoint& end : endpoints) {
    status = BindAndListen(end.storage.ss_family, end.get(), end.size, fd);
    if (status.ok()) return status;
  }
  return status;
}

// Errors of accept(2) that concern the one connection only.
bool ConnectionWasLost(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO ||
         error == ENETDOWN || error == EHOSTDOWN || error == ENONET ||
         error == EHOSTUNREACH || error == ENETUNREACH || error == EPERM;
}

}  // namespace

Listener& Listener::operator=(Listener&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    port_ = other.port_;
  }
  return *this;
}

void Listener::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

Status Listener::Open(const std::string& host, int port, Listener* out) {
  if (port < 0 || port > 65535) {
    return InvalidArgument(
        StrCat("`port` must be from 0 to 65535. Received: port=", port));
  }
  int fd = -1;
  const Status status =
      host.empty() ? ListenEverywhere(port, &fd) : ListenOn(host, port, &fd);
  if (!status.ok()) {
    return Annotate(status, StrCat("cannot listen on ",
                                   host.empty() ? "all interfaces" : host,
                                   ", port ", port));
  }
  Listener listener;
  listener.fd_ = fd;
  listener.port_ = LocalEndpoint(fd).Port();
  *out = std::move(listener);
  return Status::Ok();
}

Status Listener::Accept(Deadline deadline, Socket* out) {
  for (;;) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      *out = Socket(fd);
      return Status::Ok();
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const int ready = PollOne(fd_, POLLIN, deadline);
      if (ready == 0) {
        return DeadlineExceeded(
            StrCat("nobody connected to port ", port_, " in time"));
      }
      if (ready > 0) continue;
    }
    if (!ConnectionWasLost(errno)) {
      return Unavailable(StrCat("cannot accept connections on port ", port_,
                                ": ", ErrnoText(errno)));
    }
  }
}

}  // namespace tfring
