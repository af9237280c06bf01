// A fast 64-bit hash for pairing keys and digests. Not for security.
#ifndef TFRING_CORE_COMMON_HASH_H_
#define TFRING_CORE_COMMON_HASH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tfring {

// The finaliser of splitmix64 (Steele, Lea, Flood 2014,
// doi:10.1145/2660193.2660195): every input bit reaches every output bit.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline uint64_t HashCombine(uint64_t hash, uint64_t value) {
  return Mix(hash ^ Mix(value));
}

inline uint64_t HashBytes(const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  uint64_t hash = Mix(size);
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = HashCombine(hash, word);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, bytes, size);
  return HashCombine(hash, tail);
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_HASH_H_
