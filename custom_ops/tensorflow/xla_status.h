// How an untyped custom call tells XLA that it has failed. The setter is not
// exported; the class is this in every TensorFlow from 2.16 to 2.22 (its
// custom_call_status_internal.h). A probe makes one call that fails before any
// other (tfring/_xla.py).
#ifndef TFRING_TENSORFLOW_XLA_STATUS_H_
#define TFRING_TENSORFLOW_XLA_STATUS_H_

#include <optional>
#include <string>

namespace tfring {

struct XlaStatus {
  std::optional<std::string> message;  // there is one: failure
};

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_XLA_STATUS_H_
