// The custom call on CUDA. Not proven on a GPU yet.
//
// Copies operands to host memory, runs the collective there, and copies results
// back, all on the stream that XLA gives and waiting for it. The CUDA run-time
// is the one that TensorFlow has loaded, found when the program runs.
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
