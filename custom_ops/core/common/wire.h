// Little-endian integers in byte buffers.
#ifndef TFRING_CORE_COMMON_WIRE_H_
#define TFRING_CORE_COMMON_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace tfring {

template <typename T>
void AppendInt(T value, std::string* out) {
  static_assert(std::is_integral_v<T>);
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    out->push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
  }
}

template <typename T>
T ReadInt(const void* data) {
  static_assert(std::is_integral_v<T>);
  const auto* bytes = static_cast<const uint8_t*>(data);
  std::make_unsigned_t<T> bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bits |= static_cast<std::make_unsigned_t<T>>(
        static_cast<std::make_unsigned_t<T>>(bytes[i]) << (8 * i));
  }
  return static_cast<T>(bits);
}

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_WIRE_H_
