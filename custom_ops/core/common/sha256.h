// SHA-256 (FIPS 180-4), HMAC-SHA256 (RFC 2104) and what goes with them.
#ifndef TFRING_CORE_COMMON_SHA256_H_
#define TFRING_CORE_COMMON_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "custom_ops/core/common/status.h"

namespace tfring {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  void Update(const void* data, size_t size);
  // The digest of all updates. The object must not be used afterwards.
  Sha256Digest Finish();

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> block_;
  uint64_t total_bytes_ = 0;
};

Sha256Digest Sha256Of(const void* data, size_t size);

Sha256Digest HmacSha256(const std::string& key, const void* data, size_t size);

// Takes the same time wherever the first difference is.
bool ConstantTimeEqual(const void* a, const void* b, size_t size);

// Fills `out` from the kernel's generator (getrandom(2)).
Status RandomBytes(void* out, size_t size);

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_SHA256_H_
