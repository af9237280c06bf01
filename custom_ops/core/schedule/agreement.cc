#include "custom_ops/core/schedule/agreement.h"

#include <errno.h>

#include <new>

namespace tfring {
namespace {

constexpr uint64_t kLogEntries = 2 * Agreement::kWindow;

struct Pending {
  uint64_t uid;
  uint64_t digest;  // of the first rank
  int32_t count;
  int32_t alike;
};

}  // namespace

// `pending` is a compact array: a handful of entries in practice, so a linear
// look is faster than any index. `log` is a ring; it cannot overrun, since a
// rank has at most kWindow announced collectives that it has not yet read.
struct Agreement::Table {
  pthread_mutex_t mutex;
  uint64_t pending_count;
  alignas(64) std::atomic<uint64_t> head;
  alignas(64) LogEntry log[kLogEntries];
  Pending pending[1];  // local_size * kWindow of them
};

class Agreement::Lock {
 public:
  explicit Lock(Table* table) : table_(table) {
    const int result = pthread_mutex_lock(&table_->mutex);
    // The owner died. Its world is about to be aborted; the table is still
    // safe to walk, since entries are counted only once complete.
    if (result == EOWNERDEAD) pthread_mutex_consistent(&table_->mutex);
    held_ = result == 0 || result == EOWNERDEAD;
  }
  ~Lock() {
    if (held_) pthread_mutex_unlock(&table_->mutex);
  }
  Status status() const {
    return held_ ? Status::Ok()
                 : Internal("the agreement's mutex cannot be locked");
  }

 private:
  Table* const table_;
  bool held_;
};

uint64_t Agreement::Bytes(int local_size) {
  return sizeof(Table) +
         sizeof(Pending) * kWindow * static_cast<uint64_t>(local_size);
}

Agreement::Agreement(char* memory, int local_size)
    : table_(reinterpret_cast<Table*>(memory)), local_size_(local_size) {}

void Agreement::Initialize() {
  // The memory is zeroed; only what is not zero is set, so that untouched
  // pages stay untouched.
  new (&table_->head) std::atomic<uint64_t>(0);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&table_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

Status Agreement::Arrive(uint64_t uid, uint64_t digest, bool append,
                         Arrival* arrival) {
  Lock lock(table_);
  TFR_RETURN_IF_ERROR(lock.status());
  uint64_t i = 0;
  while (i < table_->pending_count && table_->pending[i].uid != uid) ++i;
  Pending& pending = table_->pending[i];
  if (i == table_->pending_count) {
    pending = Pending{uid, digest, 0, 1};
    ++table_->pending_count;
  }
  if (pending.digest != digest) pending.alike = 0;
  ++pending.count;
  arrival->alike = pending.alike != 0;
  arrival->host_complete = pending.count == local_size_;
  if (!arrival->host_complete) return Status::Ok();
  pending = table_->pending[table_->pending_count - 1];
  --table_->pending_count;
  if (append) {
    AppendLocked({uid, arrival->alike ? Verdict::kRun : Verdict::kMismatch});
  }
  return Status::Ok();
}

Status Agreement::Append(const LogEntry& entry) {
  Lock lock(table_);
  TFR_RETURN_IF_ERROR(lock.status());
  AppendLocked(entry);
  return Status::Ok();
}

void Agreement::AppendLocked(const LogEntry& entry) {
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

}  // namespace tfring
