#include "custom_ops/core/common/members.h"

namespace tfring {

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
