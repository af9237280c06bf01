// Streams and memory of the double, as its NCCL part sees them.
#ifndef TFRING_TESTS_ENGINE_CUDA_DOUBLE_H_
#define TFRING_TESTS_ENGINE_CUDA_DOUBLE_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "gpu_double.h"

namespace gpu_double {

// Alive and what happened so far.
struct Counters {
  std::atomic<int64_t> alive{0};
  std::atomic<int64_t> aborts{0};
  std::atomic<int64_t> nccl_calls{0};
  std::atomic<int64_t> waits{0};
};
Counters& Count();

// Does `work` on the stream (null: the default one) after what it has.
void Enqueue(void* stream, std::function<void()> work);

// Where a pointer into a GPU's memory, or into the host's, really leads.
void* Real(const void* pointer);

// The calling thread's device, and that of a stream.
int CurrentDevice();
int DeviceOf(void* stream);
// Whatever is of one device must be used while that is the current one.
void ExpectCurrent(int device, const char* what);

// Something no engine may do.
[[noreturn]] void Misused(const char* what);

}  // namespace gpu_double

#endif  // TFRING_TESTS_ENGINE_CUDA_DOUBLE_H_
