// Agreement inside a host on what runs next.
//
// Every rank announces each collective it has, in any order. The rank whose
// announcement completes the host's set appends the collective to an ordered
// log, or, when there are other hosts, tells them first (schedule/control.h);
// all ranks then run the log from front to back. Nobody coordinates, nobody
// polls, and no rank can wait for a collective that another rank runs later.
//
// Table and log live in the memory that the host's ranks share, guarded by a
// robust mutex: a rank that dies inside it cannot block the others, and one
// that is stopped inside it is named after a while.
#ifndef TFRING_CORE_SCHEDULE_AGREEMENT_H_
#define TFRING_CORE_SCHEDULE_AGREEMENT_H_

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/local_group.h"

namespace tfring {

// A rank that has joined announces nothing until all have; collectives do not
// wait for it. It runs them all the same, without a description of its own.
enum class Verdict : uint32_t {
  kRun = 1,        // all ranks described it alike
  kMismatch = 2,   // they did not: run the exchange that says who sent what
  kRunJoined = 3,  // kRun, but some ranks have joined
  kMismatchJoined = 4,  // kMismatch, but some ranks have joined
  kJoin = 5,            // all ranks have joined; `uid` is the last one's place
};

inline Verdict VerdictOf(bool alike, bool joined) {
  if (joined) return alike ? Verdict::kRunJoined : Verdict::kMismatchJoined;
  return alike ? Verdict::kRun : Verdict::kMismatch;
}
inline bool WithJoined(Verdict verdict) {
  return verdict == Verdict::kRunJoined || verdict == Verdict::kMismatchJoined;
}

struct LogEntry {
  uint64_t uid;
  Verdict verdict;
  // The rank that submitted it last, and when; between hosts, when this host
  // heard that all have it.
  int32_t last = -1;  // its place; -1: not known
  int64_t agreed_ns = 0;
};

// Who announces and when, for the log entry.
struct Origin {
  int32_t place = -1;
  int64_t now_ns = 0;
};

// What one announcement found.
struct Arrival {
  bool host_complete = false;  // this rank was the host's last
  bool alike = true;           // all digests so far are equal
  bool joined = false;         // some ranks of the host have joined
};

// A collective that the other ranks of the host had announced when the last of
// the rest joined.
struct Completion {
  uint64_t uid;
  uint64_t digest;
  bool alike;
};

// What a rank that joins finds.
struct Joining {
  std::vector<Completion> completions;
  bool host_complete = false;  // all ranks of the host have joined
};

class Agreement {
 public:
  // A rank announces at most this many collectives that it has not yet run.
  static constexpr uint64_t kWindow = 4096;
  static constexpr double kLockTimeoutS = 30.0;

  static uint64_t Bytes(int local_size);

  // UNAVAILABLE if another process keeps the table locked for `lock_timeout_s`;
  // usually that takes less than a microsecond.
  Agreement(char* memory, int local_size,
            double lock_timeout_s = kLockTimeoutS);
  // Called by the rank that created the memory, before any other uses it.
  void Initialize();

  // Announces this rank's collective. With `append`, a complete one goes
  // straight into the log.
  Status Arrive(uint64_t uid, uint64_t digest, bool append, Arrival* arrival,
                const Origin& origin = {});
  // The rank at `place` of the group joins; it has nothing announced. With
  // `append`, what that completes goes straight into the log.
  Status Join(uint64_t place, bool append, Joining* joining,
              int64_t now_ns = 0);
  // Appends a collective that all hosts have. After kJoin no rank is joined.
  Status Append(const LogEntry& entry);

  // Number of log entries so far; sequentially consistent.
  uint64_t head() const;
  LogEntry entry(uint64_t index) const;
  // Guards all of the above; for tests.
  pthread_mutex_t* mutex() const;

 private:
  struct Table;
  class Lock;

  void AppendLocked(const LogEntry& entry);

  Table* const table_;
  const int local_size_;
  const double lock_timeout_s_;
  const pid_t pid_;
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_AGREEMENT_H_
