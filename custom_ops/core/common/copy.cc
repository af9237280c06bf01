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

template <Stores kStores>
void Store(__m128i* to, __m128i value) {
  if constexpr (kStores == Stores::kStreaming) {
    _mm_stream_si128(to, value);
  } else {
    _mm_store_si128(to, value);
  }
}

// Copies up to the target's first whole line; returns how many bytes.
uint64_t CopyHead(char* to, const char* from) {
  const uint64_t head =
      (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  return head;
}

template <Stores kStores>
uint64_t CopyLines(char* to, const char* from, uint64_t bytes) {
  uint64_t at = 0;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from + at);
    auto* out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    Store<kStores>(out, a);
    Store<kStores>(out + 1, b);
    Store<kStores>(out + 2, c);
    Store<kStores>(out + 3, d);
  }
  if constexpr (kStores == Stores::kStreaming) _mm_sfence();
  return at;
}

}  // namespace

void CopyBytes(void* to, const void* from, uint64_t bytes, Stores stores) {
  if (bytes < kShort) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  uint64_t done = CopyHead(out, in);
  done +=
      stores == Stores::kStreaming
          ? CopyLines<Stores::kStreaming>(out + done, in + done, bytes - done)
          : CopyLines<Stores::kPlain>(out + done, in + done, bytes - done);
  std::memcpy(out + done, in + done, bytes - done);
}

#else

void CopyBytes(void* to, const void* from, uint64_t bytes, Stores) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif
}  // namespace tfring
