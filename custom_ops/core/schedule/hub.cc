#include "custom_ops/core/schedule/hub.h"

#include "custom_ops/core/common/status.h"

namespace tfring {

std::optional<LogEntry> Hub::HostReady(int host, uint64_t uid, uint64_t digest,
                                       bool alike) {
  std::lock_guard<std::mutex> lock(mutex_);
  Record& record = records_[uid];
  if (record.hosts_ready.empty()) record.digest = digest;
  record.alike = record.alike && alike && record.digest == digest;
  record.hosts_ready.insert(host);
  if (static_cast<int>(record.hosts_ready.size()) != members_->host_count()) {
    return std::nullopt;
  }
  const LogEntry entry = {
      uid, record.alike ? Verdict::kRun : Verdict::kMismatch};
  records_.erase(uid);
  return entry;
}

std::string Hub::Stalled(uint64_t uid, const std::string& title,
                         const std::set<int>& arrived) {
  std::lock_guard<std::mutex> lock(mutex_);
  Record& record = records_[uid];
  record.arrived.insert(arrived.begin(), arrived.end());
  std::set<int> missing;
  for (int rank = 0; rank < members_->size; ++rank) {
    const int host = members_->host_of[static_cast<size_t>(rank)];
    if (record.hosts_ready.count(host) == 0 && record.arrived.count(rank) == 0) {
      missing.insert(rank);
    }
  }
  return StrCat(title, " waits for ", RankList(missing));
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
