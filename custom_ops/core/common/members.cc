#include "custom_ops/core/common/members.h"

#include <algorithm>
#include <map>

namespace tfring {

int GroupMembers::PlaceOf(int rank_of_job) const {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank_of_job);
  if (at == ranks.end() || *at != rank_of_job) return -1;
  return static_cast<int>(at - ranks.begin());
}

int GroupMembers::leaders() const {
  auto least = static_cast<size_t>(std::max(most_leaders, 1));
  for (const std::vector<int>& places : on_host) {
    least = std::min(least, places.size());
  }
  return static_cast<int>(least);
}

GroupMembers SubsetOf(const GroupMembers& all, const std::vector<int>& ranks) {
  GroupMembers members;
  members.size = static_cast<int>(ranks.size());
  members.ranks = ranks;
  members.most_leaders = all.most_leaders;
  std::map<int, int> hosts;  // by those of `all`
  for (int place = 0; place < members.size; ++place) {
    const auto rank = static_cast<size_t>(members.RankAt(place));
    const int host_of_all = all.host_of[rank];
    const auto [it, is_new] =
        hosts.emplace(host_of_all, static_cast<int>(members.on_host.size()));
    if (is_new) {
      members.on_host.emplace_back();
      members.host_names.push_back(
          all.host_names[static_cast<size_t>(host_of_all)]);
    }
    std::vector<int>& there = members.on_host[static_cast<size_t>(it->second)];
    members.host_of.push_back(it->second);
    members.local_of.push_back(static_cast<int>(there.size()));
    there.push_back(place);
  }
  members.rank = members.PlaceOf(all.rank);
  members.host = members.included()
                     ? members.host_of[static_cast<size_t>(members.rank)]
                     : -1;
  return members;
}

std::string RankChoice(const std::vector<int>& ranks) {
  const auto span = static_cast<size_t>(ranks.back() - ranks.front() + 1);
  if (span == ranks.size()) {
    return "a rank of " + std::to_string(ranks.front()) + " to " +
           std::to_string(ranks.back());
  }
  return "one of " + RankList({ranks.begin(), ranks.end()});
}

std::string RankList(const std::set<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t i = 0;
  for (const int rank : ranks) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(rank);
    ++i;
  }
  return text;
}

}  // namespace tfring
