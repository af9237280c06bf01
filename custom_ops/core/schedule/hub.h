// What rank 0 knows and decides for all hosts: which collectives every host
// has, and who is missing when one stalls. Thread safe.
#ifndef TFRING_CORE_SCHEDULE_HUB_H_
#define TFRING_CORE_SCHEDULE_HUB_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/schedule/agreement.h"

namespace tfring {

class Hub {
 public:
  explicit Hub(const GroupMembers* members) : members_(members) {}

  // All ranks of `host` have the collective. Gives the log entry once all
  // hosts have it.
  std::optional<LogEntry> HostReady(int host, uint64_t uid, uint64_t digest,
                                    bool alike);

  // Ranks of one host that have a stalled collective. Returns what to say
  // about it: who is missing, as far as the hosts have told.
  std::string Stalled(uint64_t uid, const std::string& title,
                      const std::set<int>& arrived);

 private:
  struct Record {
    std::set<int> hosts_ready;
    std::set<int> arrived;  // ranks, from reports of stalls
    uint64_t digest = 0;
    bool alike = true;
  };

  const GroupMembers* const members_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Record> records_;  // guarded by mutex_
};

// "rank 3", "ranks 1, 4 and 5".
std::string RankList(const std::set<int>& ranks);

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_HUB_H_
