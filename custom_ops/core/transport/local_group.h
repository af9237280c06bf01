// The ranks of one host and the memory they share.
//
//   header    who may map it, how it is cut
//   ranks     per rank: a doorbell and the counters below
//   agreement the mutex, arrivals and log of schedule/agreement.h
//   slots     per rank: `depth` staging chunks
//   results   `depth` chunks that all ranks write their share of
//   partials  `depth` chunks of accumulators on their way to other hosts
//   remotes   `depth` areas for chunks that came from other hosts
//
// Chunks are numbered through the life of the group; chunk c uses the c-th
// place modulo `depth`. Each rank counts how many chunks it has
//   staged     copied into its own slot
//   reduced    its share of, into results or partials
//   exchanged  with the other hosts (host leader only)
//   taken      and needs no longer
// A place is used again once all ranks have taken its former chunk. Counters
// only grow, so a reader needs no lock: it waits for "at least".
#ifndef TFRING_CORE_TRANSPORT_LOCAL_GROUP_H_
#define TFRING_CORE_TRANSPORT_LOCAL_GROUP_H_

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/futex.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/shared_memory.h"

namespace tfring {

constexpr int kMaxLocalRanks = 256;
constexpr uint64_t kCacheLine = 64;

using Counter = std::atomic<uint64_t>;

struct alignas(128) RankState {
  std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleeping;
  std::atomic<int32_t> processor;  // where it last waited, plus one
  alignas(64) Counter staged;
  alignas(64) Counter reduced;
  alignas(64) Counter exchanged;
  alignas(64) Counter taken;
};

// How a group's memory is cut; equal on all its ranks.
struct LocalGroupShape {
  int local_size = 1;
  uint64_t agreement_bytes = 0;
  uint64_t depth = 4;
  uint64_t chunk_bytes = 0;
  uint64_t remote_chunks = 0;  // ranks on other hosts
  uint64_t nonce = 0;          // of this group, so that no other is mistaken

  uint64_t TotalBytes() const;
};

enum class WaitOutcome { kReady, kInterrupted, kTimeout };

class LocalGroup {
 public:
  // `spin_ns`: how long to look before sleeping. `yield`: give up the
  // processor between looks (more ranks than processors).
  LocalGroup(SharedMemory memory, const LocalGroupShape& shape, int local_rank,
             int64_t spin_ns, bool yield);

  // Writes the header of new memory; the other ranks Check() theirs.
  void Initialize();
  Status Check() const;

  int local_rank() const { return local_rank_; }
  int local_size() const { return shape_.local_size; }
  uint64_t depth() const { return shape_.depth; }
  uint64_t chunk_bytes() const { return shape_.chunk_bytes; }
  const SharedMemory& memory() const { return memory_; }

  RankState& state(int local) const { return ranks_[local]; }
  RankState& mine() const { return ranks_[local_rank_]; }
  char* agreement() const { return agreement_; }
  char* slot(int local, uint64_t chunk) const;
  char* result(uint64_t chunk) const;
  char* partial(uint64_t chunk) const;
  // Place for the chunk of the `ordinal`-th rank that is not on this host.
  char* remote(uint64_t chunk, uint64_t ordinal) const;

  // Sets one of this rank's counters and wakes the ranks that sleep.
  void Advance(Counter RankState::* counter, uint64_t value) {
    (mine().*counter).store(value, std::memory_order_seq_cst);
    RingOthers();
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
    return ready() || Spin(ready);
  }

  // Waits until ready(): a short spin, then sleep. Both functions read
  // sequentially consistent atomics. One thread per rank waits at a time.
  template <typename Ready, typename Interrupted>
  WaitOutcome Wait(Ready&& ready, Interrupted&& interrupted,
                   Deadline deadline) {
    if (Look(ready)) return WaitOutcome::kReady;
    return Sleep(ready, interrupted, deadline);
  }

 private:
  void Ring(int local) {
    RankState& state = ranks_[local];
    if (state.sleeping.load(std::memory_order_seq_cst) == 0) return;
    state.doorbell.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(&state.doorbell);
  }

  template <typename Ready>
  bool Spin(Ready& ready) {
    if (spin_ns_ <= 0) return false;
    const int64_t end = NowNs() + spin_ns_;
    do {
      if (!yield_ && SharesProcessor()) return false;
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        Relax();
      }
      if (yield_) sched_yield();
    } while (NowNs() < end);
    return false;
  }

  // Two ranks that meet on one processor, as a wake-up may bring about, would
  // take turns spinning while the other cannot run: a whole spin lost per wait.
  bool SharesProcessor() {
    const int32_t processor = sched_getcpu() + 1;
    mine().processor.store(processor, std::memory_order_relaxed);
    for (int p = 0; p < shape_.local_size; ++p) {
      if (p == local_rank_) continue;
      if (ranks_[p].processor.load(std::memory_order_relaxed) == processor) {
        return true;
      }
    }
    return false;
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

  static void Relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }

  const SharedMemory memory_;
  const LocalGroupShape shape_;
  const int local_rank_;
  const int64_t spin_ns_;
  const bool yield_;
  RankState* ranks_;
  char* agreement_;
  char* slots_;
};

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_LOCAL_GROUP_H_
