#include "custom_ops/core/transport/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "custom_ops/core/transport/socket.h"

namespace tfring {
namespace {

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

}  // namespace

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

std::string JoinHostPort(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
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

Status SetOption(int fd, int level, int option, int value, const char* name) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) == 0) {
    return Status::Ok();
  }
  return Internal(StrCat("cannot set ", name, ": ", ErrnoText(errno)));
}

}  // namespace tfring
