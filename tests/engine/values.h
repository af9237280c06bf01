// Tensors of every dtype, filled by a seed, and outputs that grow on request.
#ifndef TFRING_TESTS_ENGINE_VALUES_H_
#define TFRING_TESTS_ENGINE_VALUES_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "custom_ops/core/common/dtype.h"
#include "custom_ops/core/tfring.h"

namespace tfring_test {

constexpr int32_t kDtypes[] = {
    TFR_FLOAT32, TFR_FLOAT64, TFR_FLOAT16, TFR_BFLOAT16, TFR_INT8, TFR_INT16,
    TFR_INT32,   TFR_INT64,   TFR_UINT8,   TFR_UINT16,   TFR_BOOL};

using Bytes = std::vector<char>;

// One element as bytes: a finite number of moderate size, whose sums must be
// rounded in the floating types.
inline void AppendValue(int32_t dtype, uint32_t random, Bytes* out) {
  const float number =
      static_cast<float>(static_cast<int32_t>(random)) * 0x1p-30f;
  const double wide = static_cast<double>(static_cast<int32_t>(random)) / 3.0;
  char value[8] = {};
  if (dtype == TFR_FLOAT32) {
    std::memcpy(value, &number, 4);
  } else if (dtype == TFR_FLOAT64) {
    std::memcpy(value, &wide, 8);
  } else if (dtype == TFR_FLOAT16) {  // exponent 8 to 15 of 31
    const auto bits = static_cast<uint16_t>((random & 0x83ff) |
                                            ((8 + random / 65536 % 8) << 10));
    std::memcpy(value, &bits, 2);
  } else if (dtype == TFR_BFLOAT16) {
    std::memcpy(value, reinterpret_cast<const char*>(&number) + 2, 2);
  } else if (dtype == TFR_BOOL) {
    value[0] = static_cast<char>(random & 1);
  } else {
    std::memcpy(value, &random, 4);
  }
  out->insert(out->end(), value, value + tfring::DtypeSize(dtype));
}

inline Bytes RandomValues(int32_t dtype, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes;
  bytes.reserve(count * tfring::DtypeSize(dtype) + 1);
  for (size_t i = 0; i < count; ++i) {
    AppendValue(dtype, static_cast<uint32_t>(random()), &bytes);
  }
  return bytes;
}

// Buffers that allocate() hands out. `row_bytes` is set by the test.
struct Outputs {
  std::vector<uint64_t> row_bytes;
  std::vector<Bytes> data;
  std::vector<int64_t> rows;

  static void* Allocate(void* user, int32_t tensor, int64_t rows) {
    auto* out = static_cast<Outputs*>(user);
    const auto t = static_cast<size_t>(tensor);
    out->data.resize(out->row_bytes.size());
    out->rows.resize(out->row_bytes.size(), -1);
    out->rows[t] = rows;
    out->data[t].assign(static_cast<size_t>(rows) * out->row_bytes[t], '\xee');
    out->data[t].reserve(1);
    return out->data[t].data();
  }
};

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_VALUES_H_
