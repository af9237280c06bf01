// The C face of the TensorFlow adapter, called by tfring/_ops.py.
#ifndef TFRING_TENSORFLOW_ADAPTER_H_
#define TFRING_TENSORFLOW_ADAPTER_H_

#include "custom_ops/core/tfring.h"

#ifdef __cplusplus
extern "C" {
#endif

// The world that ops use from now on. NULL: none, and `reason` is the text of
// the FailedPreconditionError that ops then raise. Waits for ops that are
// handing a request to the former world; afterwards it may be shut down.
TFR_API void tfring_tf_set_world(tfr_world* world, const char* reason);

// Tells the peers that this rank's call of a collective has wrong arguments, so
// that theirs fails with `text` instead of waiting. Returns at once.
TFR_API void tfring_tf_announce_fault(int32_t kind, const char* name,
                                      int64_t process_set, const char* text);

// Waits until the peers have met all faults announced here, at most timeout_s.
TFR_API void tfring_tf_wait_for_faults(double timeout_s);

// For kernels in other libraries: tfr_submit on the world that ops use, and the
// number of ranks of a process set there (0: none, the engine says why).
TFR_API int tfring_tf_submit(const tfr_request* request, tfr_error* error);
TFR_API int64_t tfring_tf_set_size(int64_t process_set);

// To be called in a forked child: as NULL above, but takes no lock.
TFR_API void tfring_tf_after_fork(const char* reason);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TFRING_TENSORFLOW_ADAPTER_H_
