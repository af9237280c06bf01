// What every way to the engine says alike: ops on CPUs, kernels for GPUs (which
// are built where they are used, so all of this is in the header) and XLA.
#ifndef TFRING_TENSORFLOW_REQUEST_H_
#define TFRING_TENSORFLOW_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/tfring.h"

namespace tfring {

// What a collective is told beside its tensors.
struct CollectiveArguments {
  int32_t kind = 0;
  std::string name;  // pairs it with those of other ranks
  int64_t process_set = 0;
  int32_t reduce_op = TFR_SUM;
  int32_t root = 0;
  int32_t wire_dtype = 0;
  double prescale = 1.0;
  double postscale = 1.0;

  bool keeps_shapes() const {
    return kind == TFR_ALLREDUCE || kind == TFR_BROADCAST;
  }

  // Valid while this, `tensors` and `counts` live.
  tfr_request Describe(const std::vector<tfr_tensor>& tensors,
                       std::vector<int64_t>* counts) const {
    tfr_request request = {};
    request.name = name.c_str();
    request.kind = kind;
    request.process_set = process_set;
    request.reduce_op = reduce_op;
    request.root = root;
    request.tensor_count = static_cast<int32_t>(tensors.size());
    request.tensors = tensors.data();
    request.prescale = prescale;
    request.postscale = postscale;
    request.wire_dtype = wire_dtype;
    request.counts = counts->empty() ? nullptr : counts->data();
    return request;
  }
};

// The engine takes NULL for "not there", TensorFlow gives it for "empty".
inline void* NotNull(const void* data) {
  static char empty;
  return data == nullptr ? &empty : const_cast<void*>(data);
}

// The canonical code that TensorFlow is told. A lost peer is ABORTED there: its
// executor turns the UNAVAILABLE of an op it does not know as communication
// into INTERNAL.
constexpr int kAborted = 10;
inline int CodeForTensorFlow(int code) {
  return code == TFR_UNAVAILABLE ? kAborted : code;
}

// What is wrong with the splits of an alltoall of `tensors`, or empty. `wanted`
// numbers are right; none means equal parts.
inline std::string SplitsFault(size_t given, size_t wanted, size_t tensors) {
  if (given == 0 || given == wanted) return {};
  return "`splits` must hold one number of rows for each rank of the process "
         "set, " +
         std::to_string(wanted / tensors) +
         ". Received: " + std::to_string(given / tensors) + " numbers";
}

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_REQUEST_H_
