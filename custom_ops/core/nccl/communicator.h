// One NCCL communicator, seen from one rank: a nonblocking one, so that no
// thread is ever kept inside NCCL and it can be aborted at any time.
//
// A nonblocking call may return before it has done its work; then NCCL says
// "in progress" until it has. Every wait here looks for that, for NCCL's own
// asynchronous errors, for a failure of the world and at the clock, whichever
// comes first.
#ifndef TFRING_CORE_NCCL_COMMUNICATOR_H_
#define TFRING_CORE_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/nccl_api.h"

namespace tfring {

class Communicator {
 public:
  // Asked while something is awaited: an error ends the wait.
  using Interrupted = std::function<Status()>;

  explicit Communicator(const NcclApi& nccl) : nccl_(nccl) {}
  // As Abort().
  ~Communicator() { Abort(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Meets the other ranks, each of which calls it with the same id. The calling
  // thread's CUDA device is the communicator's.
  Status Init(const NcclUniqueId& id, int rank, int size, Deadline deadline,
              const Interrupted& interrupted);

  // Calls f(comm), which issues NCCL calls and returns the first result that
  // is a failure, as one group. When this returns OK they are in the stream.
  // One thread at a time.
  Status Issue(const std::function<int(NcclComm)>& f, Deadline deadline,
               const Interrupted& interrupted);

  // Before the first PreMulSum() of a collective: those handed out so far are
  // in no call that is still to come, and many may be destroyed.
  void ForgetScales();
  // The operation "sum of inputs times `factor`" of this dtype, made once. Null
  // function in the library: FAILED_PRECONDITION. Not inside Issue().
  Status PreMulSum(int dtype, double factor, int* op, Deadline deadline,
                   const Interrupted& interrupted);

  // NCCL's asynchronous error, which it can meet at any time after a call.
  Status AsyncError();

  // Everything in the stream has ended: tells the other ranks so and waits
  // until they have, then frees it; when the deadline passes, aborts.
  void Finalize(Deadline deadline, const Interrupted& interrupted);
  // Ends what runs and frees it. May be called again, and from any thread.
  void Abort();
  // Then kernels may have left their streams with nothing done, so work of
  // which an event says that it has ended counts only if this is false after
  // the event was seen.
  bool aborted() const { return aborted_.load(std::memory_order_seq_cst); }
  Status Aborted() const;

 private:
  Status Check(int result);  // needs mutex_
  // Until NCCL is done with the last call.
  Status AwaitDone(Deadline deadline, const Interrupted& interrupted);

  const NcclApi nccl_;
  std::atomic<bool> aborted_{false};  // set before kernels are told to leave
  // Held for single calls only, which return at once.
  std::mutex mutex_;
  NcclComm comm_ = nullptr;                       // guarded by mutex_
  std::map<std::pair<int, double>, int> scales_;  // guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_COMMUNICATOR_H_
