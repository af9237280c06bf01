// A communicator of the double, seen from one rank.
#ifndef TFRING_TESTS_ENGINE_COMM_DOUBLE_H_
#define TFRING_TESTS_ENGINE_COMM_DOUBLE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "cuda_double.h"
#include "mailboxes.h"

namespace gpu_double {

constexpr int kOk = tfring::kNcclSuccess;
constexpr int kInProgress = tfring::kNcclInProgress;
constexpr int kFirstMadeOp = 5;

inline std::atomic<int> version{23203};
inline std::atomic<int> hangs{0};
inline std::atomic<int> stuck{0};
inline std::atomic<int> error_rank{-1};
inline std::atomic<int> error_result{0};

using tfring::NcclConfig;
using tfring::NcclUniqueId;

// What one rank does in one call.
struct Call {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  std::vector<std::vector<char>> memory;  // that receives use
  std::function<void()> finish;
};

inline int Random(int least, int most) {
  static thread_local std::mt19937 random(std::random_device{}());
  return std::uniform_int_distribution<int>(least, most)(random);
}
inline bool Chance() { return Random(0, 1) == 1; }

inline void Nap(int least_us, int most_us) {
  const int us = Random(least_us, most_us);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

class Comm {
 public:
  Comm(std::string name, int rank, int size)
      : rank_(rank), size_(size), device_(CurrentDevice()), mapping_(name) {
    ++Count().alive;
  }
  ~Comm() {
    if (job_.joinable()) job_.join();
    --Count().alive;
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  bool usable() const { return mapping_.get() != nullptr; }

  // --- called from outside, one thread at a time ----------------------------

  void Init() {
    Start([this] {
      ++mapping_.get()->arrived;
      while ((mapping_.get()->arrived < size_ || hangs != 0) && !aborted_) {
        Nap(20, 50);
      }
      mapping_.Unlink();
    });
  }

  int AsyncError() {
    if (error_rank == rank_ && error_result != 0) return error_result;
    return busy_ ? kInProgress : kOk;
  }

  void CheckIdle() {
    if (busy_) Misused("a call while the one before is in progress");
  }

  // As one kernel on the stream.
  void Launch(std::vector<Call> calls, void* stream) {
    Start([this, stream,
           shared = std::make_shared<std::vector<Call>>(std::move(calls))] {
      Nap(0, 100);
      ++running_;
      Enqueue(stream, [this, shared] {
        Run(shared.get());
        --running_;
      });
    });
  }

  void Finalize() {
    Start([this] {
      while (running_ > 0 && !aborted_) Nap(20, 50);
      ++mapping_.get()->finalized;
      while (mapping_.get()->finalized < size_ && !aborted_) Nap(20, 50);
    });
  }

  void Abort() {
    aborted_ = true;
    ++Count().aborts;
    while (running_ > 0 || busy_) Nap(20, 50);
  }
  void AwaitKernels() {
    while (running_ > 0) Nap(20, 50);
  }

  // No thread may be inside a call while another aborts.
  struct Inside {
    explicit Inside(Comm* comm) : comm_(comm) { ++comm_->inside_; }
    ~Inside() { --comm_->inside_; }
    Comm* comm_;
  };
  int inside() const { return inside_; }

  int MakeOp(const Reduction& how) {
    made_[next_op_] = how;
    return next_op_++;
  }
  bool DestroyOp(int op) { return made_.erase(op) > 0; }
  Reduction ReductionOf(int op) {
    if (op < kFirstMadeOp) return {op, false, 1.0};
    if (made_.count(op) == 0) Misused("a reduction that does not exist");
    return made_[op];
  }
  uint64_t NextTag(uint64_t what) { return what * 1000003 + calls_++; }

 private:
  void Start(std::function<void()> job) {
    CheckIdle();
    if (job_.joinable()) job_.join();
    busy_ = true;
    job_ = std::thread([this, job = std::move(job)] {
      job();
      busy_ = false;
    });
  }

  bool Failing() const { return error_rank == rank_ && error_result != 0; }

  // On the stream's thread.
  void Run(std::vector<Call>* calls) {
    // Messages of a pair of ranks keep their order; pairs do not wait for each
    // other.
    std::vector<std::vector<Transfer*>> sends(static_cast<size_t>(size_));
    std::vector<std::vector<Transfer*>> receives(static_cast<size_t>(size_));
    size_t left = 0;
    for (Call& call : *calls) {
      for (Transfer& one : call.sends) {
        sends[static_cast<size_t>(one.peer)].push_back(&one);
        ++left;
      }
      for (Transfer& one : call.receives) {
        receives[static_cast<size_t>(one.peer)].push_back(&one);
        ++left;
      }
    }
    while (left > 0 || Failing() || stuck != 0) {
      if (aborted_) return;
      bool moved = false;
      for (int peer = 0; peer < size_ && !Failing() && stuck == 0; ++peer) {
        moved = Move(peer, &sends, &left, true) || moved;
        moved = Move(peer, &receives, &left, false) || moved;
      }
      if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    for (Call& call : *calls) {
      if (call.finish) call.finish();
    }
  }

  bool Move(int peer, std::vector<std::vector<Transfer*>>* all, size_t* left,
            bool send) {
    std::vector<Transfer*>& queue = (*all)[static_cast<size_t>(peer)];
    if (queue.empty()) return false;
    Transfer* const first = queue.front();
    MeetingPlace* const place = mapping_.get();
    bool same = true;
    const bool moved =
        send ? PutPiece(&place->boxes[rank_][peer], first)
             : TakePiece(&place->boxes[peer][rank_], first, &same);
    if (!same) Misused("ranks issue different NCCL calls");
    if (IsDone(*first)) {
      queue.erase(queue.begin());
      --*left;
    }
    return moved;
  }

  const int rank_;
  const int size_;
  const int device_;
  Mapping mapping_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<int> inside_{0};
  std::atomic<int> running_{0};  // kernels
  std::thread job_;
  std::map<int, Reduction> made_;
  int next_op_ = kFirstMadeOp;
  uint64_t calls_ = 0;
};

}  // namespace gpu_double

#endif  // TFRING_TESTS_ENGINE_COMM_DOUBLE_H_
