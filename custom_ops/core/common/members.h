// The ranks of a job and the hosts they sit on.
#ifndef TFRING_CORE_COMMON_MEMBERS_H_
#define TFRING_CORE_COMMON_MEMBERS_H_

#include <set>
#include <string>
#include <vector>

namespace tfring {

// Who sits where. Ranks of one host are ordered; the first one leads.
struct GroupMembers {
  int rank = 0;                           // this rank
  int size = 1;                           // of the group
  int host = 0;                           // index of this rank's host
  std::vector<std::vector<int>> on_host;  // ranks of each host, ascending
  std::vector<int> host_of;               // host of each rank
  std::vector<int> local_of;              // place of each rank in its host
  std::vector<std::string> host_names;

  int host_count() const { return static_cast<int>(on_host.size()); }
  const std::vector<int>& here() const {
    return on_host[static_cast<size_t>(host)];
  }
  int local_rank() const { return local_of[static_cast<size_t>(rank)]; }
  bool leads() const { return local_rank() == 0; }
};

// "rank 3", "ranks 1, 4 and 5".
std::string RankList(const std::set<int>& ranks);

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_MEMBERS_H_
