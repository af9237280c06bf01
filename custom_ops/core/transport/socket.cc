#include "custom_ops/core/transport/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>

namespace tfring {
namespace {

constexpr int kConnectRetryMs = 50;
constexpr int kBacklog = 1024;

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

std::string Endpoint::Host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &storage, sizeof(v4));
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  } else if (storage.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &storage, sizeof(v6));
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    }
  }
  return text;
}

int Endpoint::Port() const {
  if (storage.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &storage, sizeof(v4));
    return ntohs(v4.sin_port);
  }
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &storage, sizeof(v6));
    return ntohs(v6.sin6_port);
  }
  return 0;
}

Endpoint LocalEndpoint(int fd) {
  Endpoint end;
  if (getsockname(fd, end.get(), &end.size) != 0) end.storage.ss_family = 0;
  return end;
}

Endpoint PeerEndpoint(int fd) {
  Endpoint end;
  if (getpeername(fd, end.get(), &end.size) != 0) end.storage.ss_family = 0;
  return end;
}

std::string PeerText(int fd) {
  const Endpoint end = PeerEndpoint(fd);
  // A socket pair of tests has no address.
  return end.Port() == 0 ? "local peer" : JoinHostPort(end.Host(), end.Port());
}

Status SetOption(int fd, int level, int option, int value, const char* name) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) == 0) {
    return Status::Ok();
  }
  return Internal(StrCat("cannot set ", name, ": ", ErrnoText(errno)));
}

bool ParsePort(const std::string& text, int* port) {
  if (text.empty() || text.size() > 5) return false;
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + (c - '0');
  }
  *port = value;
  return value >= 1 && value <= 65535;
}

Status SplitAddress(const std::string& address, std::string* host,
                    std::string* port) {
  const size_t colon = address.rfind(':');
  int number = 0;
  bool valid = colon != std::string::npos && colon > 0 &&
               ParsePort(address.substr(colon + 1), &number);
  if (valid) {
    *host = address.substr(0, colon);
    *port = address.substr(colon + 1);
    if (host->front() == '[' && host->back() == ']') {
      *host = host->substr(1, host->size() - 2);
    } else {
      valid = host->find(':') == std::string::npos;
    }
  }
  if (valid && !host->empty()) return Status::Ok();
  return InvalidArgument(
      StrCat("an address must be \"host:port\" or \"[IPv6]:port\" with a port "
             "from 1 to 65535. Received: address=\"",
             address, "\""));
}

// The endpoints that a name stands for. `retry` says whether asking again may
// help.
Status Resolve(const std::string& host, const std::string& port, int flags,
               std::vector<Endpoint>* endpoints, bool* retry) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (rc != 0) {
    const std::string text =
        rc == EAI_SYSTEM ? ErrnoText(errno) : std::string(gai_strerror(rc));
    *retry = rc == EAI_AGAIN;
    return Unavailable(StrCat("cannot resolve host \"", host, "\": ", text));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Endpoint end;
    if (each->ai_addrlen > sizeof(end.storage)) continue;
    std::memcpy(&end.storage, each->ai_addr, each->ai_addrlen);
    end.size = each->ai_addrlen;
    endpoints->push_back(end);
  }
  *retry = false;
  return Status::Ok();
}

int PollOne(int fd, short events, Deadline deadline) {
  pollfd entry = {fd, events, 0};
  for (;;) {
    const int ready = poll(&entry, 1, deadline.PollMs());
    // A poll cut short by its int range is not yet over.
    if (ready > 0 || (ready == 0 && deadline.expired())) return ready;
    if (ready < 0 && errno != EINTR) return -1;
  }
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

std::vector<std::string> SplitNames(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) {
    const size_t first = name.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    const size_t last = name.find_last_not_of(" \t");
    names.push_back(name.substr(first, last - first + 1));
  }
  return names;
}

struct InterfaceAddress {
  std::string name;
  std::string address;
  bool loopback;
  bool v4;
};

Status ListInterfaces(std::vector<InterfaceAddress>* out) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return Internal(
        StrCat("cannot list network interfaces: ", ErrnoText(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list,
                                                               freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Endpoint end;
    std::memcpy(&end.storage, each->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (family == AF_INET6) {
      sockaddr_in6 v6;
      std::memcpy(&v6, &end.storage, sizeof(v6));
      if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) continue;
    }
    out->push_back({each->ifa_name, end.Host(),
                    (each->ifa_flags & IFF_LOOPBACK) != 0, family == AF_INET});
  }
  std::stable_sort(out->begin(), out->end(),
                   [](const auto& a, const auto& b) { return a.v4 && !b.v4; });
  return Status::Ok();
}

std::string NamesOf(const std::vector<InterfaceAddress>& interfaces) {
  std::string text;
  for (const InterfaceAddress& each : interfaces) {
    text +=
        StrCat(text.empty() ? "" : ", ", each.name, " (", each.address, ")");
  }
  return text.empty() ? "none" : text;
}

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

std::string JoinHostPort(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

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

Status InterfaceAddresses(const std::string& names,
                          std::vector<std::string>* addresses) {
  std::vector<InterfaceAddress> interfaces;
  TFR_RETURN_IF_ERROR(ListInterfaces(&interfaces));
  addresses->clear();
  const std::vector<std::string> wanted = SplitNames(names);
  for (const std::string& name : wanted) {
    const size_t before = addresses->size();
    for (const InterfaceAddress& each : interfaces) {
      if (each.name == name) addresses->push_back(each.address);
    }
    if (addresses->size() == before) {
      return InvalidArgument(StrCat(
          "`interfaces` must name network interfaces that are up and "
          "have an address; this host has ",
          NamesOf(interfaces), ". Received: interfaces=\"", names, "\""));
    }
  }
  if (!wanted.empty()) return Status::Ok();
  for (const InterfaceAddress& each : interfaces) {
    if (!each.loopback) addresses->push_back(each.address);
  }
  return Status::Ok();
}

}  // namespace tfring
