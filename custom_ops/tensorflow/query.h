// Questions about ranks that are answered when a program runs.
#ifndef TFRING_TENSORFLOW_QUERY_H_
#define TFRING_TENSORFLOW_QUERY_H_

#include <cstdint>

#include "custom_ops/core/tfring.h"

namespace tfring {

// Numbers are those of tfring/_calls.py.
enum Question : int64_t {
  kSize = 0,
  kRank = 1,
  kLocalSize = 2,
  kLocalRank = 3,
  kIncluded = 4,
};

struct Query {
  int64_t question = kSize;
  int64_t process_set = 0;
};

// Waits for nobody. Returns a tfr_code.
int Ask(tfr_world* world, const Query& query, int32_t* answer,
        tfr_error* error);

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_QUERY_H_
