// The ranks of one host and the memory they share.
//
//   header    who may map it, how it is cut
//   ranks     per rank: a doorbell and the counters below
//   agreement the mutex, arrivals and log of schedule/agreement.h
//   slots     per rank: `depth` staging chunks
//   results   `depth` chunks that all ranks write their share of
//   partials  `depth` chunks of accumulators on their way to other hosts
//   remotes   `depth` areas for chunks that came from other hosts, each of them
//             as large as a chunk may be where those of all ranks meet
//
// Chunks are numbered through the life of the group; chunk c uses the c-th
// place modulo `depth`. Each rank counts how many chunks it has
//   staged     copied into its own slot
//   reduced    its share of, into results or partials
//   exchanged  with the other hosts (leaders only; of those it exchanges)
//   taken      and needs no longer
// A place is used again once all ranks have taken its former chunk. Counters
// only grow, so a reader needs no lock: it waits for "at least".
//
// A rank that sleeps publishes what it wants, so that of many ranks only the
// one that brings the last missing piece wakes it: a wake-up costs more than a
// chunk, and on a crowded host it takes the processor from a rank that works.
#ifndef TFRING_CORE_TRANSPORT_LOCAL_GROUP_H_
#define TFRING_CORE_TRANSPORT_LOCAL_GROUP_H_

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/futex.h"
#include "custom_ops/core/common/relax.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/shared_memory.h"
#include "custom_ops/core/transport/tuning.h"

namespace tfring {

constexpr int kMaxLocalRanks = 256;
constexpr uint64_t kCacheLine = 64;

constexpr uint64_t kNothing = ~uint64_t{0};

struct alignas(kCacheLine) Counter {
  std::atomic<uint64_t> value{0};
  // While the owner sleeps: the value of others' counters that it waits for.
  std::atomic<uint64_t> wanted{kNothing};
};

struct alignas(128) RankState {
  std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleeping;
  std::atomic<int32_t> wanted_of;  // whose counters: a rank, or kAll
  // Where it waits, plus one; 0: nowhere. Changes in long waits; on a line of
  // its own, since others look in each collective whether this rank sleeps.
  alignas(kCacheLine) std::atomic<int32_t> processor;
  Counter staged;
  Counter reduced;
  Counter exchanged;
  Counter taken;
};

// Counters that a rank waits for: those of one other rank, or of all others.
constexpr int kAll = -1;
struct Goal {
  Counter RankState::* counter;
  uint64_t value;
};
// Any of these.
class Goals {
 public:
  void Add(Goal goal) { goals_[static_cast<size_t>(count_++)] = goal; }
  void Clear() { count_ = 0; }
  const Goal* begin() const { return goals_.data(); }
  const Goal* end() const { return goals_.data() + count_; }

 private:
  std::array<Goal, 4> goals_;  // no rank has more counters
  int count_ = 0;
};

// How a group's memory is cut and used; equal on all its ranks.
struct LocalGroupShape {
  int local_size = 1;
  uint64_t agreement_bytes = 0;
  Tuning tuning;
  uint64_t remote_chunks = 0;        // ranks on other hosts
  uint64_t meeting_chunk_bytes = 0;  // where chunks of all ranks meet
  uint64_t nonce = 0;  // of this group, so that no other is mistaken

  uint64_t TotalBytes() const;
};

enum class WaitOutcome { kReady, kInterrupted, kTimeout };

class LocalGroup {
 public:
  // `yield`: give up the processor between looks (more ranks than processors).
  // `copy_threads`: that this rank moves data with.
  LocalGroup(SharedMemory memory, const LocalGroupShape& shape, int local_rank,
             bool yield, int copy_threads = 1);

  // Writes the header of new memory; the other ranks read theirs.
  void Initialize();
  static Status ShapeIn(const SharedMemory& memory, uint64_t nonce,
                        LocalGroupShape* shape);

  int local_rank() const { return local_rank_; }
  int local_size() const { return shape_.local_size; }
  uint64_t depth() const { return shape_.tuning.depth; }
  uint64_t chunk_bytes() const { return shape_.tuning.chunk_bytes; }
  uint64_t meeting_chunk_bytes() const { return shape_.meeting_chunk_bytes; }
  uint64_t direct_bytes() const { return shape_.tuning.direct_bytes; }
  int copy_threads() const { return copy_threads_; }
  const SharedMemory& memory() const { return memory_; }

  RankState& state(int local) const { return ranks_[local]; }
  RankState& mine() const { return ranks_[local_rank_]; }
  char* agreement() const { return agreement_; }
  char* slot(int local, uint64_t chunk) const;
  char* result(uint64_t chunk) const;
  char* partial(uint64_t chunk) const;
  // Place for the chunk of the `ordinal`-th rank that is not on this host, of
  // meeting_chunk_bytes() at most.
  char* remote(uint64_t chunk, uint64_t ordinal) const;

  // Sets one of this rank's counters and wakes the ranks that lacked just that.
  void Advance(Counter RankState::* counter, uint64_t value) {
    (mine().*counter).value.store(value, std::memory_order_seq_cst);
    for (int p = 0; p < shape_.local_size; ++p) {
      if (p != local_rank_ && Lacked(p, counter, value)) Ring(p);
    }
  }
  // To be called after a change (sequentially consistent) others wait for.
  void RingOthers() {
    for (int p = 0; p < shape_.local_size; ++p) {
      if (p != local_rank_) Ring(p);
    }
  }
  // ... including this rank's own thread, from another one.
  void RingAll() {
    for (int p = 0; p < shape_.local_size; ++p) Ring(p);
  }
  // Wakes this rank's own waiting thread for sure, from another thread of the
  // process.
  void RingSelf() {
    mine().doorbell.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(&mine().doorbell);
  }

  // Looks for a short while whether ready(), as Wait does first.
  template <typename Ready>
  bool Look(Ready&& ready) {
    const bool is_ready = Spin(ready);
    ForgetProcessor();
    return is_ready;
  }

  // Waits until ready(): a short spin, then sleep. Both functions read
  // sequentially consistent atomics. One thread per rank waits at a time.
  template <typename Ready, typename Interrupted>
  WaitOutcome Wait(Ready&& ready, Interrupted&& interrupted,
                   Deadline deadline) {
    const WaitOutcome outcome =
        Spin(ready) ? WaitOutcome::kReady : Sleep(ready, interrupted, deadline);
    ForgetProcessor();
    return outcome;
  }
  // ... without the spin.
  template <typename Ready, typename Interrupted>
  WaitOutcome WaitAsleep(Ready&& ready, Interrupted&& interrupted,
                         Deadline deadline) {
    return Sleep(ready, interrupted, deadline);
  }

  // Whether rank `of` (kAll: all others) has reached the goal.
  bool Reached(const Goal& goal, int of) const {
    return HasReached(goal, of, local_rank_);
  }
  // ... one of the goals.
  bool Reached(const Goals& goals, int of) const {
    for (const Goal& goal : goals) {
      if (Reached(goal, of)) return true;
    }
    return false;
  }
  // The other rank that has passed the fewest chunks: the rest wait for it.
  int Slowest() const;
  // Waits until one is.
  template <typename Interrupted>
  WaitOutcome WaitFor(const Goals& goals, int of, Interrupted&& interrupted,
                      Deadline deadline) {
    const auto ready = [&] { return Reached(goals, of); };
    if (Spin(ready)) {
      ForgetProcessor();
      return WaitOutcome::kReady;
    }
    mine().wanted_of.store(of, std::memory_order_relaxed);
    for (const Goal& goal : goals) {
      (mine().*goal.counter)
          .wanted.store(goal.value, std::memory_order_relaxed);
    }
    const WaitOutcome outcome = Sleep(ready, interrupted, deadline);
    for (const Goal& goal : goals) {
      (mine().*goal.counter).wanted.store(kNothing, std::memory_order_relaxed);
    }
    ForgetProcessor();
    return outcome;
  }

  bool IsAsleep(int local) const {
    return ranks_[local].sleeping.load(std::memory_order_seq_cst) != 0;
  }
  // Wakes one rank, like RingOthers.
  void Ring(int local) {
    RankState& state = ranks_[local];
    if (!IsAsleep(local)) return;
    // Whoever takes the mark wakes it; it looks again before it sleeps again.
    if (state.sleeping.exchange(0, std::memory_order_seq_cst) == 0) return;
    state.doorbell.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(&state.doorbell);
  }

 private:
  // Whether `rank` sleeps and has what it wants now that this rank's counter is
  // `value`. The mark was set after what is wanted, and the sleeper looked at
  // all counters after it had set the mark.
  bool Lacked(int rank, Counter RankState::* counter, uint64_t value) const {
    const RankState& state = ranks_[rank];
    if (state.sleeping.load(std::memory_order_seq_cst) == 0) return false;
    const int of = state.wanted_of.load(std::memory_order_relaxed);
    const uint64_t wanted =
        (state.*counter).wanted.load(std::memory_order_relaxed);
    if (wanted > value || (of != kAll && of != local_rank_)) return false;
    return HasReached({counter, wanted}, of, rank);
  }

  // Whether `of` (kAll: all but `waiter`) have reached the goal.
  bool HasReached(const Goal& goal, int of, int waiter) const {
    if (of != kAll) return ValueOf(of, goal) >= goal.value;
    for (int p = 0; p < shape_.local_size; ++p) {
      if (p != waiter && ValueOf(p, goal) < goal.value) return false;
    }
    return true;
  }
  uint64_t ValueOf(int local, const Goal& goal) const {
    return (ranks_[local].*goal.counter).value.load(std::memory_order_seq_cst);
  }

  // Most waits end at the first looks: these cost neither a clock nor a line
  // that others read.
  template <typename Ready>
  bool Spin(Ready& ready) {
    if (shape_.tuning.spin_ns <= 0) return ready();
    // Whom a rank waits for may wait for the processor: then it is let go soon.
    int looks = yield_ ? 4 : 256;
    for (int64_t end = 0;;) {
      for (int i = 0; i < looks; ++i) {
        if (ready()) return true;
        Relax();
      }
      if (yield_) {
        sched_yield();
      } else if (SharesProcessor()) {
        return false;
      }
      if (!yield_) looks = 32;
      const int64_t now = NowNs();
      if (end == 0) end = now + shape_.tuning.spin_ns;
      if (now >= end) return ready();
    }
  }

  // Two ranks that meet on one processor, as a wake-up may bring about, would
  // take turns spinning while the other cannot run: a whole spin lost per wait.
  bool SharesProcessor() {
    const int32_t processor = sched_getcpu() + 1;
    // Others read the line: it is written when it changes only.
    std::atomic<int32_t>& known = mine().processor;
    if (known.load(std::memory_order_relaxed) != processor) {
      known.store(processor, std::memory_order_relaxed);
    }
    for (int p = 0; p < shape_.local_size; ++p) {
      if (p == local_rank_) continue;
      if (ranks_[p].processor.load(std::memory_order_relaxed) == processor) {
        return true;
      }
    }
    return false;
  }
  // The wait is over: where this rank goes now, it does not wait.
  void ForgetProcessor() {
    std::atomic<int32_t>& known = mine().processor;
    if (known.load(std::memory_order_relaxed) == 0) return;
    known.store(0, std::memory_order_relaxed);
  }

  template <typename Ready, typename Interrupted>
  WaitOutcome Sleep(Ready& ready, Interrupted& interrupted, Deadline deadline) {
    RankState& state = mine();
    for (;;) {
      state.sleeping.store(1, std::memory_order_seq_cst);
      const uint32_t bell = state.doorbell.load(std::memory_order_seq_cst);
      const bool is_ready = ready();
      if (!is_ready && !interrupted() && !deadline.expired()) {
        FutexWait(&state.doorbell, bell, SleepNs(deadline));
      }
      state.sleeping.store(0, std::memory_order_seq_cst);
      if (is_ready || ready()) return WaitOutcome::kReady;
      if (interrupted()) return WaitOutcome::kInterrupted;
      if (deadline.expired()) return WaitOutcome::kTimeout;
    }
  }

  static int64_t SleepNs(Deadline deadline) {
    constexpr int64_t kHour = int64_t{3600} * 1000000000;
    const int64_t left = deadline.RemainingNs();
    return left < kHour ? left : kHour;
  }

  const SharedMemory memory_;
  const LocalGroupShape shape_;
  const int local_rank_;
  const bool yield_;
  const int copy_threads_;
  RankState* ranks_;
  char* agreement_;
  char* slots_;
};

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_LOCAL_GROUP_H_
