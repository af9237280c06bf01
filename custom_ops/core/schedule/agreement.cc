#include "custom_ops/core/schedule/agreement.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/relax.h"

namespace tfring {
namespace {

constexpr uint64_t kLogEntries = 2 * Agreement::kWindow;

struct Pending {
  uint64_t uid;
  uint64_t digest;  // of the first rank
  int32_t count;
  int32_t alike;
  Origin latest;  // of the ranks so far
};

}  // namespace

// `pending` is a compact array: a handful of entries in practice, so a linear
// look is faster than any index. `log` is a ring; it cannot overrun, since a
// rank has at most kWindow announced collectives that it has not yet read.
struct Agreement::Table {
  pthread_mutex_t mutex;
  std::atomic<int32_t> owner;  // the process that locked it last
  uint64_t pending_count;
  int32_t joined;  // ranks
  alignas(64) std::atomic<uint64_t> head;
  alignas(64) LogEntry log[kLogEntries];
  Pending pending[1];  // local_size * kWindow of them
};

class Agreement::Lock {
 public:
  explicit Lock(const Agreement& agreement)
      : table_(agreement.table_), timeout_s_(agreement.lock_timeout_s_) {
    result_ = pthread_mutex_trylock(&table_->mutex);
    // It is held for less than what it costs to sleep and to be woken.
    for (int i = 0; result_ == EBUSY && i < kLooks; ++i) {
      Relax();
      result_ = pthread_mutex_trylock(&table_->mutex);
    }
    if (result_ == EBUSY) result_ = LockSlowly();
    // The owner died. Its world is about to be aborted; the table is still
    // safe to walk, since entries are counted only once complete.
    if (result_ == EOWNERDEAD) {
      result_ = pthread_mutex_consistent(&table_->mutex);
    }
    if (result_ == 0) {
      table_->owner.store(agreement.pid_, std::memory_order_relaxed);
    }
  }
  ~Lock() {
    if (result_ == 0) pthread_mutex_unlock(&table_->mutex);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  Status status() const {
    if (result_ == 0) return Status::Ok();
    if (result_ != ETIMEDOUT) {
      return Internal(StrCat("the agreement of this host's ranks cannot be ",
                             "locked: ", ErrnoText(result_)));
    }
    return Unavailable(
        StrCat("process ", table_->owner.load(std::memory_order_relaxed),
               " on this host has kept the agreement of its ranks locked for ",
               timeout_s_, " s; is it stopped?"));
  }

 private:
  static constexpr int kLooks = 50;

  // In steps: the clock that every C library offers for this may be set back.
  int LockSlowly() {
    constexpr int64_t kStepNs = 100 * 1000 * 1000;
    const Deadline deadline = Deadline::After(timeout_s_);
    int result;
    do {
      timespec until;
      clock_gettime(CLOCK_REALTIME, &until);
      const int64_t ns = until.tv_nsec + kStepNs;
      until.tv_sec += ns / 1000000000;
      until.tv_nsec = ns % 1000000000;
      result = pthread_mutex_timedlock(&table_->mutex, &until);
    } while (result == ETIMEDOUT && !deadline.expired());
    return result;
  }

  Table* const table_;
  const double timeout_s_;
  int result_;
};

uint64_t Agreement::Bytes(int local_size) {
  constexpr uint64_t kAlignment = 64;  // of what lies behind
  const uint64_t bytes = sizeof(Table) + sizeof(Pending) * kWindow *
                                             static_cast<uint64_t>(local_size);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Agreement::Agreement(char* memory, int local_size, double lock_timeout_s)
    : table_(reinterpret_cast<Table*>(memory)),
      local_size_(local_size),
      lock_timeout_s_(lock_timeout_s),
      pid_(getpid()) {}

void Agreement::Initialize() {
  // The memory is zeroed; only what is not zero is set, so that untouched
  // pages stay untouched.
  new (&table_->head) std::atomic<uint64_t>(0);
  new (&table_->owner) std::atomic<int32_t>(0);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&table_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

Status Agreement::Arrive(uint64_t uid, uint64_t digest, bool append,
                         Arrival* arrival, const Origin& origin) {
  const Lock lock(*this);
  TFR_RETURN_IF_ERROR(lock.status());
  uint64_t i = 0;
  while (i < table_->pending_count && table_->pending[i].uid != uid) ++i;
  Pending& pending = table_->pending[i];
  if (i == table_->pending_count) {
    pending = Pending{uid, digest, 0, 1, {}};
    ++table_->pending_count;
  }
  if (pending.digest != digest) pending.alike = 0;
  // Not always this one: a rank may have had it for long and tried elsewhere
  // first (express.h).
  if (origin.now_ns >= pending.latest.now_ns) pending.latest = origin;
  const Origin latest = pending.latest;
  ++pending.count;
  arrival->alike = pending.alike != 0;
  arrival->joined = table_->joined > 0;
  arrival->host_complete = pending.count + table_->joined == local_size_;
  if (!arrival->host_complete) return Status::Ok();
  pending = table_->pending[table_->pending_count - 1];
  --table_->pending_count;
  if (append) {
    AppendLocked({uid, VerdictOf(arrival->alike, arrival->joined), latest.place,
                  latest.now_ns});
  }
  return Status::Ok();
}

Status Agreement::Join(uint64_t place, bool append, Joining* joining,
                       int64_t now_ns) {
  const Lock lock(*this);
  TFR_RETURN_IF_ERROR(lock.status());
  const auto last = static_cast<int32_t>(place);
  ++table_->joined;
  for (uint64_t i = 0; i < table_->pending_count;) {
    Pending& pending = table_->pending[i];
    if (pending.count + table_->joined != local_size_) {
      ++i;
      continue;
    }
    const Completion done = {pending.uid, pending.digest, pending.alike != 0};
    joining->completions.push_back(done);
    pending = table_->pending[table_->pending_count - 1];
    --table_->pending_count;
    if (append) {
      AppendLocked({done.uid, VerdictOf(done.alike, true), last, now_ns});
    }
  }
  joining->host_complete = table_->joined == local_size_;
  if (joining->host_complete && append) {
    AppendLocked({place, Verdict::kJoin, last, now_ns});
  }
  return Status::Ok();
}

Status Agreement::Append(const LogEntry& entry) {
  const Lock lock(*this);
  TFR_RETURN_IF_ERROR(lock.status());
  AppendLocked(entry);
  return Status::Ok();
}

void Agreement::AppendLocked(const LogEntry& entry) {
  if (entry.verdict == Verdict::kJoin) table_->joined = 0;
  const uint64_t head = table_->head.load(std::memory_order_relaxed);
  table_->log[head % kLogEntries] = entry;
  table_->head.store(head + 1, std::memory_order_seq_cst);
}

uint64_t Agreement::head() const {
  return table_->head.load(std::memory_order_seq_cst);
}

LogEntry Agreement::entry(uint64_t index) const {
  return table_->log[index % kLogEntries];
}

pthread_mutex_t* Agreement::mutex() const { return &table_->mutex; }

}  // namespace tfring
