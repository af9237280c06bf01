// 16-bit floats to and from float32, eight elements at a time, for x86-64
// processors with AVX2 and F16C. Same rounding as half_scalar.h.
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

// The same for the eight lanes of one vector.
static inline void WidenVector(const Float16* from, __m256* to) {
  *to =
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline void NarrowVector(const __m256& from, Float16* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(from, _MM_FROUND_TO_NEAREST_INT));
}

static inline void WidenVector(const BFloat16* from, __m256* to) {
  const __m128i halves =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  *to =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline void NarrowVector(const __m256& from, BFloat16* to) {
  const __m256i bits = _mm256_castps_si256(from);
  const __m256i odd =
      _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i kept = _mm256_srli_epi32(
      _mm256_castps_si256(_mm256_blendv_ps(
          _mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet),
          _mm256_cmp_ps(from, from, _CMP_UNORD_Q))),
      16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32(_mm256_castsi256_si128(kept),
                                    _mm256_extracti128_si256(kept, 1)));
}

// Whole runs of bfloat16 need no such instructions: the plain loops vectorise.
static inline void Widen(const BFloat16* from, float* to, size_t count) {
  half_scalar::Widen(from, to, count);
}
static inline void Narrow(const float* from, BFloat16* to, size_t count) {
  half_scalar::Narrow(from, to, count);
}

}  // namespace half_f16c
}  // namespace tfring

#endif  // TFRING_CORE_COMMON_HALF_F16C_H_
