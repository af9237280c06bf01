#include "custom_ops/core/rendezvous/store_protocol.h"

#include "custom_ops/core/common/wire.h"

namespace tfring {

std::string StoreRequest::Encode() const {
  std::string bytes;
  bytes.push_back(static_cast<char>(op));
  bytes.append(3, '\0');
  AppendInt(key_bytes, &bytes);
  AppendInt(value_bytes, &bytes);
  AppendInt(timeout_ns, &bytes);
  AppendInt(count, &bytes);
  bytes.append(4, '\0');
  return bytes;
}

Status StoreRequest::Decode(const void* bytes, StoreRequest* out) {
  const auto* data = static_cast<const uint8_t*>(bytes);
  if (data[0] < static_cast<uint8_t>(StoreOp::kSet) ||
      data[0] > static_cast<uint8_t>(StoreOp::kGather)) {
    return InvalidArgument(
        StrCat("unknown store operation ", static_cast<int>(data[0])));
  }
  out->op = static_cast<StoreOp>(data[0]);
  out->key_bytes = ReadInt<uint32_t>(data + 4);
  out->value_bytes = ReadInt<uint64_t>(data + 8);
  out->timeout_ns = ReadInt<int64_t>(data + 16);
  out->count = ReadInt<uint32_t>(data + 24);
  return out->Check();
}

Status StoreRequest::Check() const {
  if (key_bytes == 0 || key_bytes > kStoreMaxKeyBytes) {
    return InvalidArgument(StrCat("`key` must have 1 to ", kStoreMaxKeyBytes,
                                  " bytes. Received: a key of ", key_bytes,
                                  " bytes"));
  }
  if (value_bytes > kStoreMaxValueBytes) {
    return InvalidArgument(
        StrCat("a value must have at most ", kStoreMaxValueBytes,
               " bytes. Received: a value of ", value_bytes, " bytes"));
  }
  const bool writes = op == StoreOp::kSet || op == StoreOp::kSetOnce;
  if (!writes && value_bytes != 0) {
    return InvalidArgument("a request that reads must not carry a value");
  }
  if (count > kStoreMaxGather) {
    return InvalidArgument(StrCat("`n` must be at most ", kStoreMaxGather,
                                  ". Received: n=", count));
  }
  return Status::Ok();
}

std::string StoreReply::Encode() const {
  std::string bytes;
  bytes.push_back(static_cast<char>(code));
  bytes.push_back(flag ? 1 : 0);
  bytes.append(2, '\0');
  AppendInt(count, &bytes);
  AppendInt(payload_bytes, &bytes);
  return bytes;
}

Status StoreReply::Decode(const void* bytes, StoreReply* out) {
  const auto* data = static_cast<const uint8_t*>(bytes);
  out->code = static_cast<tfr_code>(data[0]);
  out->flag = data[1] != 0;
  out->count = ReadInt<uint32_t>(data + 4);
  out->payload_bytes = ReadInt<uint64_t>(data + 8);
  if (data[0] > 16 || out->payload_bytes > kStoreMaxReplyBytes ||
      out->count > kStoreMaxGather) {
    return Unavailable("the store sent a reply that cannot be read");
  }
  return Status::Ok();
}

}  // namespace tfring
