// The ranks of a group (a whole job, or a process set of it) and the hosts they
// sit on.
#ifndef TFRING_CORE_COMMON_MEMBERS_H_
#define TFRING_CORE_COMMON_MEMBERS_H_

#include <set>
#include <string>
#include <vector>

namespace tfring {

// Who sits where. The engine counts the members of a group from 0, their
// places; only people hear of ranks, which are those of the whole job. Places
// on one host are ordered. The first one leads; with several hosts, the first
// few of each are leaders that exchange data with those of the others.
struct GroupMembers {
  int rank = 0;                           // this rank's place; -1: no member
  int size = 1;                           // of the group
  int host = 0;                           // index of this rank's host, or -1
  std::vector<int> ranks;                 // rank of each place, ascending
  std::vector<std::vector<int>> on_host;  // places on each host, ascending
  std::vector<int> host_of;               // host of each place
  std::vector<int> local_of;              // number of each place in its host
  std::vector<std::string> host_names;
  int most_leaders = 1;  // that a host may have

  // The rank that people know a place by.
  int RankAt(int place) const { return ranks[static_cast<size_t>(place)]; }
  // The place of a rank; -1 if it is not a member.
  int PlaceOf(int rank_of_job) const;
  bool included() const { return rank >= 0; }
  int host_count() const { return static_cast<int>(on_host.size()); }
  const std::vector<int>& here() const {
    return on_host[static_cast<size_t>(host)];
  }
  int local_rank() const { return local_of[static_cast<size_t>(rank)]; }
  bool leads() const { return local_rank() == 0; }
  // Of each host; equal on all, so that they pair.
  int leaders() const;
  bool exchanges() const {
    return host_count() > 1 && local_rank() < leaders();
  }
  // The place on another host that this one exchanges with.
  int PartnerOn(int other) const {
    return on_host[static_cast<size_t>(other)]
                  [static_cast<size_t>(local_rank())];
  }
};

// The picture that one member of `all` has of the group of some of its ranks
// (ascending). Hosts without such a rank are left out.
GroupMembers SubsetOf(const GroupMembers& all, const std::vector<int>& ranks);

// "a rank of 0 to 3", "one of ranks 1, 4 and 5".
std::string RankChoice(const std::vector<int>& ranks);

// "rank 3", "ranks 1, 4 and 5".
std::string RankList(const std::set<int>& ranks);

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_MEMBERS_H_
