// float16 to and from float32, eight elements at a time, for x86-64 processors
// with AVX and F16C. Same rounding as half_scalar.h.
#ifndef TFRING_CORE_COMMON_HALF_F16C_H_
#define TFRING_CORE_COMMON_HALF_F16C_H_

#include <immintrin.h>

#include "custom_ops/core/common/half_scalar.h"

namespace tfring {
namespace half_f16c {

static inline void Widen(const Float16* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  half_scalar::Widen(from + i, to + i, count - i);
}

static inline void Narrow(const float* from, Float16* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves =
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  half_scalar::Narrow(from + i, to + i, count - i);
}

// bfloat16 needs no such instructions: the plain loops vectorise.
static inline void Widen(const BFloat16* from, float* to, size_t count) {
  half_scalar::Widen(from, to, count);
}
static inline void Narrow(const float* from, BFloat16* to, size_t count) {
  half_scalar::Narrow(from, to, count);
}

}  // namespace half_f16c
}  // namespace tfring

#endif  // TFRING_CORE_COMMON_HALF_F16C_H_
