// float16 and bfloat16 to and from float32, one element at a time, for every
// processor. Rounds to nearest even; NaN stays NaN, infinity stays infinity.
// Internal linkage: each instruction set's kernels keep a copy of their own.
#ifndef TFRING_CORE_COMMON_HALF_SCALAR_H_
#define TFRING_CORE_COMMON_HALF_SCALAR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tfring {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

namespace half_scalar {

static inline float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float ToFloat(BFloat16 value) {
  return BitsToFloat(static_cast<uint32_t>(value.bits) << 16);
}

static inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>((nan ? bits | 0x400000u : rounded) >> 16)};
}

static inline float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 31) {
    return BitsToFloat(sign | 0x7f800000u | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return BitsToFloat(sign | FloatToBits(magnitude));
  }
  return BitsToFloat(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline Float16 ToFloat16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    return {static_cast<uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x1ffu))};
  }
  if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    return {static_cast<uint16_t>(sign | 0x7c00u)};
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal
    // Adding 0.5 puts the units of 2^-24 into the low mantissa bits, rounded.
    const float shifted = BitsToFloat(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (FloatToBits(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

static inline void Widen(const Float16* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = ToFloat(from[i]);
}
static inline void Narrow(const float* from, Float16* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = ToFloat16(from[i]);
}
static inline void Widen(const BFloat16* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = ToFloat(from[i]);
}
static inline void Narrow(const float* from, BFloat16* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = ToBFloat16(from[i]);
}

}  // namespace half_scalar
}  // namespace tfring

#endif  // TFRING_CORE_COMMON_HALF_SCALAR_H_
