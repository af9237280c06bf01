// What a collective op is told by its attributes, read once per kernel.
#ifndef TFRING_TENSORFLOW_ATTRIBUTES_H_
#define TFRING_TENSORFLOW_ATTRIBUTES_H_

#include <cstdint>
#include <string>

#include "custom_ops/core/tfring.h"
#include "tensorflow/c/kernels.h"

namespace tfring {

struct CollectiveAttributes {
  tfr_kind kind;
  std::string name;  // pairs the op with those of other ranks
  int64_t process_set = 0;
  int32_t reduce_op = TFR_SUM;
  int32_t root = 0;
  // The caller waits for the op and does nothing else.
  bool eager = false;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t wire_dtype = 0;
};

// Leaves the reason in `status` on failure.
void ReadAttributes(TF_OpKernelConstruction* construction,
                    CollectiveAttributes* attributes, TF_Status* status);

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_ATTRIBUTES_H_
