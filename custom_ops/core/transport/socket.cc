#include "custom_ops/core/transport/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "custom_ops/core/transport/endpoint.h"

namespace tfring {
namespace {

constexpr int kConnectRetryMs = 50;

std::string PeerText(int fd) {
  const Endpoint end = PeerEndpoint(fd);
  // A socket pair of tests has no address.
  return end.Port() == 0 ? "local peer" : JoinHostPort(end.Host(), end.Port());
}

// A socket that dials a free local port may get that very port and meet
// itself.
bool ConnectedToItself(int fd) {
  const Endpoint local = LocalEndpoint(fd);
  const Endpoint peer = PeerEndpoint(fd);
  return local.Port() == peer.Port() && local.Host() == peer.Host();
}

// 0, or the errno of one attempt.
int TryConnect(const Endpoint& end, Deadline deadline, Socket* out) {
  Socket socket(::socket(end.storage.ss_family,
                         SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno;
  if (connect(socket.fd(), end.get(), end.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    const int ready = PollOne(socket.fd(), POLLOUT, deadline);
    if (ready < 0) return errno;
    if (ready == 0) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      return errno;
    }
    if (error != 0) return error;
  }
  if (ConnectedToItself(socket.fd())) return ECONNREFUSED;
  *out = Socket(socket.Release());
  return 0;
}

bool WorthRetrying(int error) {
  return error == ECONNREFUSED || error == ECONNRESET || error == ETIMEDOUT ||
         error == EHOSTUNREACH || error == ENETUNREACH || error == EAGAIN;
}

// One attempt per endpoint.
Status TryEndpoints(const std::string& address,
                    const std::vector<Endpoint>& endpoints, Deadline deadline,
                    Socket* out, bool* retry) {
  int error = EADDRNOTAVAIL;
  *retry = false;
  for (const Endpoint& end : endpoints) {
    error = TryConnect(end, deadline, out);
    if (error == 0) return Status::Ok();
    *retry = *retry || WorthRetrying(error);
  }
  return Unavailable(
      StrCat("cannot connect to ", address, ": ", ErrnoText(error)));
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd < 0) return;
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  // Fails on a Unix socket, which needs no such option.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  peer_ = PeerText(fd);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
    peer_ = std::move(other.peer_);
  }
  return *this;
}

void Socket::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void Socket::Shutdown() {
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
}

Status Socket::Connect(const std::string& address, Deadline deadline,
                       Socket* out) {
  std::string host;
  std::string port;
  TFR_RETURN_IF_ERROR(SplitAddress(address, &host, &port));
  const int64_t start_ns = NowNs();
  for (;;) {
    std::vector<Endpoint> endpoints;
    bool retry = false;
    Status status = Resolve(host, port, 0, &endpoints, &retry);
    if (status.ok()) {
      status = TryEndpoints(address, endpoints, deadline, out, &retry);
    }
    if (status.ok() || !retry) return status;
    const int pause_ms = deadline.never()
                             ? kConnectRetryMs
                             : std::min(kConnectRetryMs, deadline.PollMs());
    if (pause_ms == 0) {
      return Unavailable(StrCat(status.message(), " (tried for ",
                                (NowNs() - start_ns) / 1000000, " ms)"));
    }
    poll(nullptr, 0, pause_ms);
  }
}

Status Socket::Wait(short events, Deadline deadline, const char* doing) const {
  const int ready = PollOne(fd_, events, deadline);
  if (ready > 0) return Status::Ok();
  if (ready == 0) {
    return DeadlineExceeded(StrCat("time ran out while ", doing, " ", peer_));
  }
  return Unavailable(
      StrCat("error while ", doing, " ", peer_, ": ", ErrnoText(errno)));
}

Status Socket::SendAll(const void* data, size_t size, Deadline deadline) {
  constexpr char kDoing[] = "sending to";
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes += sent;
      size -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TFR_RETURN_IF_ERROR(Wait(POLLOUT, deadline, kDoing));
    } else if (errno != EINTR) {
      return Unavailable(
          StrCat("error while ", kDoing, " ", peer_, ": ", ErrnoText(errno)));
    }
  }
  return Status::Ok();
}

Status Socket::RecvAll(void* data, size_t size, Deadline deadline) {
  constexpr char kDoing[] = "receiving from";
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = recv(fd_, bytes, size, MSG_DONTWAIT);
    if (got > 0) {
      bytes += got;
      size -= static_cast<size_t>(got);
    } else if (got == 0) {
      return Unavailable(StrCat("the connection was closed by ", peer_));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TFR_RETURN_IF_ERROR(Wait(POLLIN, deadline, kDoing));
    } else if (errno != EINTR) {
      return Unavailable(
          StrCat("error while ", kDoing, " ", peer_, ": ", ErrnoText(errno)));
    }
  }
  return Status::Ok();
}

Status Socket::SetKeepalive(int idle_s, int interval_s, int count) {
  const int timeout_ms = (idle_s + interval_s * count) * 1000;
  TFR_RETURN_IF_ERROR(
      SetOption(fd_, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  TFR_RETURN_IF_ERROR(
      SetOption(fd_, IPPROTO_TCP, TCP_KEEPIDLE, idle_s, "TCP_KEEPIDLE"));
  TFR_RETURN_IF_ERROR(
      SetOption(fd_, IPPROTO_TCP, TCP_KEEPINTVL, interval_s, "TCP_KEEPINTVL"));
  TFR_RETURN_IF_ERROR(
      SetOption(fd_, IPPROTO_TCP, TCP_KEEPCNT, count, "TCP_KEEPCNT"));
  return SetOption(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms,
                   "TCP_USER_TIMEOUT");
}

std::string Socket::LocalHost() const { return LocalEndpoint(fd_).Host(); }

}  // namespace tfring
