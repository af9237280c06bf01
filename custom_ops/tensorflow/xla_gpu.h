// The custom call on CUDA. Not proven on a GPU yet.
//
// Tensors stay on the GPU: the request tells the engine the device and XLA's
// stream, and the engine waits there for an event (core/nccl/device_plane.h).
// The calling thread waits until the engine is done, so that XLA hears of
// errors; what XLA launches afterwards sees the results.
//
// What must be read on the host is fetched: the line that tells the call, once
// for all that fit into kXlaLeastBytes; dimensions that were not known when the
// program was traced; and the numbers of rows of an allgather. Each of these
// waits for the stream once, an allreduce of a few tensors once in all.
#ifndef TFRING_TENSORFLOW_XLA_GPU_H_
#define TFRING_TENSORFLOW_XLA_GPU_H_

#include <cstddef>

#include "custom_ops/tensorflow/xla_status.h"

namespace tfring {

// `buffers`: operands, then results, as in xla_targets.cc, in device memory.
void XlaGpuTarget(void* stream, void** buffers, const char* config, size_t size,
                  XlaStatus* status);

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_XLA_GPU_H_
