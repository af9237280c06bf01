#include "custom_ops/core/rendezvous/identity.h"

#include <limits.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "custom_ops/core/common/status.h"

namespace tfring {

std::string MachineName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

std::string HostKey(const std::string& name) {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  char space[64] = {};
  // Without /proc the key is only less sharp.
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) {
    space[0] = '\0';
  }
  return StrCat(name, "|", boot_id, "|", space);
}

GroupMembers MembersOf(int rank, const std::vector<std::string>& keys,
                       const std::vector<std::string>& names) {
  GroupMembers members;
  members.rank = rank;
  members.size = static_cast<int>(keys.size());
  std::map<std::string, int> hosts;
  for (int r = 0; r < members.size; ++r) {
    const auto at = static_cast<size_t>(r);
    const auto [it, is_new] =
        hosts.emplace(keys[at], static_cast<int>(members.on_host.size()));
    if (is_new) {
      members.on_host.emplace_back();
      members.host_names.push_back(names[at]);
    }
    std::vector<int>& there = members.on_host[static_cast<size_t>(it->second)];
    members.host_of.push_back(it->second);
    members.local_of.push_back(static_cast<int>(there.size()));
    there.push_back(r);
    members.ranks.push_back(r);
  }
  members.host = members.host_of[static_cast<size_t>(rank)];
  return members;
}

}  // namespace tfring
