#include "custom_ops/core/common/copy.h"

#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tfring {
#if defined(__SSE2__)
namespace {

constexpr uint64_t kLine = 64;
// Below this the C library is as good.
constexpr uint64_t kShort = 2048;

// Copies up to the target's first whole line; returns how many bytes.
uint64_t CopyHead(char* to, const char* from) {
  const uint64_t head =
      (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  return head;
}

uint64_t CopyLines(char* to, const char* from, uint64_t bytes) {
  uint64_t at = 0;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from + at);
    auto* out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_store_si128(out, a);
    _mm_store_si128(out + 1, b);
    _mm_store_si128(out + 2, c);
    _mm_store_si128(out + 3, d);
  }
  return at;
}

}  // namespace

void CopyBytes(void* to, const void* from, uint64_t bytes) {
  if (bytes < kShort) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  uint64_t done = CopyHead(out, in);
  done += CopyLines(out + done, in + done, bytes - done);
  std::memcpy(out + done, in + done, bytes - done);
}

#else

void CopyBytes(void* to, const void* from, uint64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif
}  // namespace tfring
