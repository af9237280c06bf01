// A stand-in for the CUDA run-time library and NCCL, over host memory: one
// small shared library with the names of both, which tests give to the engine
// in place of the real ones.
//
// What makes it worth testing against:
// * Streams are threads, so work is asynchronous and events matter.
// * Streams, events, pinned memory and communicators are of the device that was
//   current when they were made; using them while another is, or with what is
//   of another, ends the process with a message.
// * The memory of a "GPU" cannot be read or written through its pointers; only
//   the streams know where it really is. An engine that touches it crashes.
// * Communicators are nonblocking: calls return "in progress" and finish on
//   another thread. Calling one meanwhile, aborting one while a thread is
//   inside a call, and ranks that issue different calls end the process with a
//   message. So does a reduction that is used after its end.
// * Calls inside a group say at random that they are in progress.
// * Kernels leave their stream when they are aborted, with nothing done, and
//   the events behind them happen.
// * Ranks are threads or processes: data goes through named shared memory. A
//   rank that dies leaves the others waiting until they abort, as with NCCL.
//
// Differences: no deadlock by a GPU that runs out of room, no speed.
#ifndef TFRING_TESTS_ENGINE_GPU_DOUBLE_H_
#define TFRING_TESTS_ENGINE_GPU_DOUBLE_H_

#include <cstdint>

#define GPU_DOUBLE_API extern "C" __attribute__((visibility("default")))

// What a test may ask of it, beside the functions of CUDA and NCCL.

// Each piece of work on a stream takes at least this long from now on.
GPU_DOUBLE_API void gpu_double_slow(int64_t microseconds);
// From now on the communicator of this NCCL rank (of this process) reports an
// error, and its kernels wait until they are aborted. 0: no rank does.
GPU_DOUBLE_API void gpu_double_nccl_error(int rank, int result);
// Communicators of this process never come to be: their ranks wait.
GPU_DOUBLE_API void gpu_double_nccl_hangs(int hangs);
// Kernels of this process do nothing until they are aborted.
GPU_DOUBLE_API void gpu_double_nccl_stuck(int stuck);
// The version that ncclGetVersion tells.
GPU_DOUBLE_API void gpu_double_nccl_version(int version);
// Pinned memory of more than this many bytes is not to be had.
GPU_DOUBLE_API void gpu_double_pinned_limit(uint64_t bytes);
// Streams of the highest priority made so far.
GPU_DOUBLE_API int64_t gpu_double_first_streams();
// Streams, events, pinned buffers and communicators that are alive.
GPU_DOUBLE_API int64_t gpu_double_alive();
// Communicators aborted so far.
GPU_DOUBLE_API int64_t gpu_double_aborts();
// Collectives and messages that NCCL was asked for so far.
GPU_DOUBLE_API int64_t gpu_double_nccl_calls();
// The devices, a bit each, on which this process has a context so far: CUDA
// makes one when a thread sets the device or, having set none, uses device 0.
GPU_DOUBLE_API uint64_t gpu_double_contexts();
// Times that a thread was made to wait for a stream so far.
GPU_DOUBLE_API int64_t gpu_double_waits();

#endif  // TFRING_TESTS_ENGINE_GPU_DOUBLE_H_
