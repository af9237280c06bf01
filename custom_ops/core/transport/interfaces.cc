// InterfaceAddresses() of socket.h.
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>

#include "custom_ops/core/transport/endpoint.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {
namespace {

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

}  // namespace

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
