// The frames that store clients and the server exchange after the handshake.
//
//   request  op u8, 3 zero bytes, key size u32, value size u64,
//            timeout ns i64, count u32, 4 zero bytes; key; value
//   reply    code u8, flag u8, 2 zero bytes, count u32, payload size u64;
//            payload
//
// All integers are little-endian. A client sends one request at a time.
// The payload of a reply is
//   GET      the value
//   GATHER   per key: value size u64, value; or, when the time is over
//            (DEADLINE_EXCEEDED), the missing indices, each i32
//   any      that failed otherwise: a message
#ifndef TFRING_CORE_RENDEZVOUS_STORE_PROTOCOL_H_
#define TFRING_CORE_RENDEZVOUS_STORE_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "custom_ops/core/common/status.h"

namespace tfring {

enum class StoreOp : uint8_t { kSet = 1, kSetOnce = 2, kGet = 3, kGather = 4 };

constexpr uint64_t kStoreMaxValueBytes = uint64_t{1} << 30;
// A gathered reply adds a size to each value.
constexpr uint64_t kStoreMaxReplyBytes = uint64_t{1} << 31;
constexpr uint32_t kStoreMaxKeyBytes = 4096;
constexpr uint32_t kStoreMaxGather = uint32_t{1} << 20;
constexpr int64_t kStoreWaitForever = -1;

struct StoreRequest {
  static constexpr size_t kBytes = 32;

  StoreOp op = StoreOp::kGet;
  uint32_t key_bytes = 0;
  uint64_t value_bytes = 0;
  int64_t timeout_ns = 0;  // kStoreWaitForever, 0 = ask once
  uint32_t count = 0;      // GATHER

  std::string Encode() const;
  // INVALID_ARGUMENT if a field is out of its range.
  static Status Decode(const void* bytes, StoreRequest* out);
  Status Check() const;
};

struct StoreReply {
  static constexpr size_t kBytes = 16;

  tfr_code code = TFR_OK;
  bool flag = false;  // SET_ONCE: this request set the key
  uint32_t count = 0;
  uint64_t payload_bytes = 0;

  std::string Encode() const;
  static Status Decode(const void* bytes, StoreReply* out);
};

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_STORE_PROTOCOL_H_
