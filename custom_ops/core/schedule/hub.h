// What rank 0 knows and decides for the members of one group: which collectives
// every host has, and who is missing when one stalls. Members are named by
// their places. Thread safe.
#ifndef TFRING_CORE_SCHEDULE_HUB_H_
#define TFRING_CORE_SCHEDULE_HUB_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/members.h"
#include "custom_ops/core/schedule/agreement.h"

namespace tfring {

// What came out of asking all ranks about a stalled collective.
struct StallReport {
  std::string text;  // "allreduce 'g' ... waits for rank 1"
  bool fatal;
};

class Hub {
 public:
  explicit Hub(const GroupMembers* members) : members_(members) {}

  // All ranks of `host` have the collective, or have `joined`, the one at
  // `last` as the last of them. Gives the log entry once all hosts have it.
  std::optional<LogEntry> HostReady(int host, uint64_t uid, uint64_t digest,
                                    bool alike, bool joined = false,
                                    int last = -1);
  // All ranks of `host` have joined, the one at `place` as the last of them.
  // Gives the log entries that waited for it only.
  std::vector<LogEntry> HostJoined(int host, int place);
  // Gives out no more entries; returns the number of those given out.
  uint64_t Close();

  // A rank says that a collective stalls. True if all ranks must now be asked
  // whether they have it; false if that has been done or is going on. A join
  // does not wait for ranks that wait themselves: if there are only such, then
  // what they wait for will be reported.
  // With `runs` it is in the middle: then all are asked whether they are there.
  bool StartInquiry(uint64_t uid, const std::string& title, bool fatal,
                    bool is_join = false, bool runs = false);
  // A member's answer.
  void Answer(uint64_t uid, int place, bool has_it);
  // Inquiries that all have answered or that have waited long enough. Ranks
  // that did not answer count as missing.
  std::vector<StallReport> FinishedInquiries();
  // When FinishedInquiries() is worth asking again.
  Deadline NextInquiry();

 private:
  struct Ready {
    std::set<int> hosts;
    uint64_t digest = 0;
    bool alike = true;
    bool joined = false;  // some ranks of these hosts
    int last = -1;        // the place that completed the last of the hosts
  };
  struct Inquiry {
    std::string title;
    bool fatal = false;
    bool is_join = false;
    bool runs = false;
    bool open = false;
    std::set<int> silent;   // ranks
    std::set<int> missing;  // ranks
    Deadline deadline = Deadline::Never();
  };

  std::string ReportOf(const Inquiry& inquiry) const;  // "": nothing to say
  // Of what all hosts have, unless closed.
  std::optional<LogEntry> EntryOf(uint64_t uid, const Ready& ready);

  const GroupMembers* const members_;
  std::mutex mutex_;
  std::set<int> joined_hosts_;                 // guarded by mutex_
  bool closed_ = false;                        // guarded by mutex_
  uint64_t entries_ = 0;                       // guarded by mutex_
  std::unordered_map<uint64_t, Ready> ready_;  // guarded by mutex_
  std::map<uint64_t, Inquiry> inquiries_;      // guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_HUB_H_
