// What a collective op is told by its attributes, read once per kernel.
#ifndef TFRING_TENSORFLOW_ATTRIBUTES_H_
#define TFRING_TENSORFLOW_ATTRIBUTES_H_

#include "custom_ops/tensorflow/request.h"
#include "tensorflow/c/kernels.h"

namespace tfring {

struct CollectiveAttributes : CollectiveArguments {
  // The caller waits for the op and does nothing else.
  bool eager = false;
};

// Leaves the reason in `status` on failure.
void ReadAttributes(TF_OpKernelConstruction* construction,
                    CollectiveAttributes* attributes, TF_Status* status);

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_ATTRIBUTES_H_
