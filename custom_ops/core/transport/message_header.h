// What precedes every message between hosts:
//
//   byte  0  tag    which exchange it belongs to   uint64, little-endian
//   byte  8  bytes  that follow                    uint64, little-endian
#ifndef TFRING_CORE_TRANSPORT_MESSAGE_HEADER_H_
#define TFRING_CORE_TRANSPORT_MESSAGE_HEADER_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "custom_ops/core/common/wire.h"

namespace tfring {

struct MessageHeader {
  static constexpr size_t kSize = 16;
  using Encoded = std::array<char, kSize>;

  uint64_t tag = 0;
  uint64_t bytes = 0;

  Encoded Encode() const {
    std::string text;
    AppendInt(tag, &text);
    AppendInt(bytes, &text);
    Encoded encoded;
    std::memcpy(encoded.data(), text.data(), kSize);
    return encoded;
  }
  static MessageHeader Decode(const Encoded& encoded) {
    return {ReadInt<uint64_t>(encoded.data()),
            ReadInt<uint64_t>(encoded.data() + 8)};
  }
  bool operator==(const MessageHeader& other) const {
    return tag == other.tag && bytes == other.bytes;
  }
};

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_MESSAGE_HEADER_H_
