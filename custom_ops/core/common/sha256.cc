#include "custom_ops/core/common/sha256.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tfring {
namespace {

constexpr size_t kBlockBytes = 64;

// FIPS 180-4, section 4.2.2: the first 32 bits of the fractional parts of the
// cube roots of the first 64 primes.
constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t RotateRight(uint32_t x, int bits) {
  return (x >> bits) | (x << (32 - bits));
}

uint32_t ReadBigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
         uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void WriteBigEndian(uint32_t value, uint8_t* bytes) {
  for (int i = 0; i < 4; ++i) {
    bytes[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
  }
}

// FIPS 180-4, section 6.2.2, step 1.
void ExpandMessage(const uint8_t* block, uint32_t* w) {
  for (int t = 0; t < 16; ++t) w[t] = ReadBigEndian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = RotateRight(w[t - 15], 7) ^ RotateRight(w[t - 15], 18) ^
                        (w[t - 15] >> 3);
    const uint32_t s1 = RotateRight(w[t - 2], 17) ^ RotateRight(w[t - 2], 19) ^
                        (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
}

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      block_{} {}

void Sha256::Compress(const uint8_t* block) {
  uint32_t w[64];
  ExpandMessage(block, w);
  std::array<uint32_t, 8> v = state_;
  auto& [a, b, c, d, e, f, g, h] = v;
  for (int t = 0; t < 64; ++t) {
    const uint32_t sum1 =
        RotateRight(e, 6) ^ RotateRight(e, 11) ^ RotateRight(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + kRoundConstants[t] + w[t];
    const uint32_t sum0 =
        RotateRight(a, 2) ^ RotateRight(a, 13) ^ RotateRight(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t t2 = sum0 + majority;
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  for (size_t i = 0; i < v.size(); ++i) state_[i] += v[i];
}

void Sha256::Update(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const size_t used = total_bytes_ % kBlockBytes;
    const size_t step = std::min(size, kBlockBytes - used);
    std::memcpy(block_.data() + used, bytes, step);
    total_bytes_ += step;
    bytes += step;
    size -= step;
    if (used + step == kBlockBytes) Compress(block_.data());
  }
}

Sha256Digest Sha256::Finish() {
  const uint64_t bits = total_bytes_ * 8;
  const uint8_t one = 0x80;
  const uint8_t zero = 0;
  Update(&one, 1);
  while (total_bytes_ % kBlockBytes != kBlockBytes - 8) Update(&zero, 1);
  uint8_t length[8];
  WriteBigEndian(static_cast<uint32_t>(bits >> 32), length);
  WriteBigEndian(static_cast<uint32_t>(bits), length + 4);
  Update(length, sizeof(length));
  Sha256Digest digest;
  for (size_t i = 0; i < state_.size(); ++i) {
    WriteBigEndian(state_[i], digest.data() + 4 * i);
  }
  return digest;
}

Sha256Digest Sha256Of(const void* data, size_t size) {
  Sha256 hash;
  hash.Update(data, size);
  return hash.Finish();
}

Sha256Digest HmacSha256(const std::string& key, const void* data, size_t size) {
  std::array<uint8_t, kBlockBytes> padded{};
  if (key.size() > kBlockBytes) {
    const Sha256Digest digest = Sha256Of(key.data(), key.size());
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  std::array<uint8_t, kBlockBytes> pad;
  const auto flip = [&](uint8_t mask) {
    std::transform(padded.begin(), padded.end(), pad.begin(),
                   [&](uint8_t b) { return static_cast<uint8_t>(b ^ mask); });
  };
  Sha256 inner;
  flip(0x36);
  inner.Update(pad.data(), pad.size());
  inner.Update(data, size);
  const Sha256Digest inner_digest = inner.Finish();
  Sha256 outer;
  flip(0x5c);
  outer.Update(pad.data(), pad.size());
  outer.Update(inner_digest.data(), inner_digest.size());
  return outer.Finish();
}

bool ConstantTimeEqual(const void* a, const void* b, size_t size) {
  const auto* x = static_cast<const volatile uint8_t*>(a);
  const auto* y = static_cast<const volatile uint8_t*>(b);
  uint8_t difference = 0;
  for (size_t i = 0; i < size; ++i) {
    difference = static_cast<uint8_t>(difference | (x[i] ^ y[i]));
  }
  return difference == 0;
}

Status RandomBytes(void* out, size_t size) {
  auto* bytes = static_cast<uint8_t*>(out);
  while (size > 0) {
    const ssize_t got = getrandom(bytes, size, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return Internal(StrCat("cannot get random bytes: ", ErrnoText(errno)));
    }
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return Status::Ok();
}

}  // namespace tfring
