// Joining and reducing one number, as tests of joining do.
#ifndef TFRING_TESTS_ENGINE_JOINS_H_
#define TFRING_TESTS_ENGINE_JOINS_H_

#include <cstdint>
#include <string>

#include "job.h"

namespace tfring_test {

// Joins; returns the rank that joined last, or -1 with an error.
inline int64_t Join(tfr_world* world, tfr_error* error = nullptr) {
  int64_t last = -1;
  Call call;
  call.name = "join";
  call.kind = TFR_JOIN;
  call.counts = &last;
  tfr_error mine = {};
  const int code = call.Run(world, &mine);
  if (error != nullptr) {
    *error = mine;
  } else {
    EXPECT_EQ(std::string(mine.text), "");
  }
  return code == TFR_OK ? last : -1;
}

inline int Reduce(tfr_world* world, int32_t op, float* value,
                  tfr_error* error = nullptr) {
  Call call;
  call.reduce_op = op;
  call.tensors = {{{}, TFR_FLOAT32, value, value}};
  return call.Run(world, error);
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_JOINS_H_
