#include "custom_ops/core/rendezvous/store_client.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "custom_ops/core/common/wire.h"
#include "custom_ops/core/transport/handshake.h"

namespace tfring {
namespace {

constexpr uint64_t kStepBytes = uint64_t{1} << 20;
// The longest that one step of a transfer may take, and that the server may
// answer late.
constexpr double kStallS = 60.0;
constexpr double kLongestTimeoutS = 1e9;
constexpr size_t kShownIndices = 20;

int64_t TimeoutNs(double timeout_s) {
  if (timeout_s >= kLongestTimeoutS) return kStoreWaitForever;
  return static_cast<int64_t>(std::ceil(timeout_s * 1e9));
}

Status CheckTimeout(double timeout_s) {
  if (timeout_s >= 0) return Status::Ok();
  return InvalidArgument(StrCat(
      "`timeout_s` must not be negative. Received: timeout_s=", timeout_s));
}

std::string ShowIndices(const std::vector<int32_t>& indices) {
  std::string text;
  for (size_t i = 0; i < indices.size() && i < kShownIndices; ++i) {
    text += StrCat(i == 0 ? "" : ", ", indices[i]);
  }
  return indices.size() > kShownIndices ? text + ", ..." : text;
}

Status SplitValues(const std::string& payload, uint32_t count,
                   std::vector<std::string>* values) {
  values->clear();
  size_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (payload.size() - at < sizeof(uint64_t)) break;
    const auto size = ReadInt<uint64_t>(payload.data() + at);
    at += sizeof(uint64_t);
    if (payload.size() - at < size) break;
    values->push_back(payload.substr(at, size));
    at += size;
  }
  if (values->size() == count && at == payload.size()) return Status::Ok();
  values->clear();
  return Internal("the store sent values that cannot be read");
}

std::vector<int32_t> ReadIndices(const std::string& payload) {
  std::vector<int32_t> indices;
  for (size_t at = 0; at + sizeof(int32_t) <= payload.size();
       at += sizeof(int32_t)) {
    indices.push_back(ReadInt<int32_t>(payload.data() + at));
  }
  return indices;
}

}  // namespace

Status StoreClient::Connect(const std::string& address,
                            const std::string& secret, double timeout_s,
                            std::unique_ptr<StoreClient>* out) {
  TFR_RETURN_IF_ERROR(CheckTimeout(timeout_s));
  const std::string context = StrCat("cannot reach the store at ", address);
  const Deadline deadline = Deadline::After(timeout_s);
  Socket socket;
  TFR_RETURN_IF_ERROR(
      Annotate(Socket::Connect(address, deadline, &socket), context));
  TFR_RETURN_IF_ERROR(Annotate(socket.SetKeepalive(30, 10, 3), context));
  Hello mine;
  mine.purpose = kPurposeStore;
  Hello theirs;
  const Status status = Annotate(
      ClientHandshake(socket, secret, mine, &theirs, deadline), context);
  if (status.code() == TFR_DEADLINE_EXCEEDED) {
    return Unavailable(status.message());
  }
  TFR_RETURN_IF_ERROR(status);
  if (theirs.purpose != kPurposeStore) {
    return FailedPrecondition(StrCat(context, ": it is not a store"));
  }
  out->reset(new StoreClient(std::move(socket), address));
  return Status::Ok();
}

Status StoreClient::Set(const std::string& key, const void* data,
                        uint64_t size) {
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.value_bytes = size;
  StoreReply reply;
  std::string payload;
  return Call(request, key, data, 0, &reply, &payload);
}

Status StoreClient::SetOnce(const std::string& key, const void* data,
                            uint64_t size, bool* was_set) {
  StoreRequest request;
  request.op = StoreOp::kSetOnce;
  request.value_bytes = size;
  StoreReply reply;
  std::string payload;
  TFR_RETURN_IF_ERROR(Call(request, key, data, 0, &reply, &payload));
  *was_set = reply.flag;
  return Status::Ok();
}

Status StoreClient::Get(const std::string& key, double timeout_s,
                        std::string* value) {
  TFR_RETURN_IF_ERROR(CheckTimeout(timeout_s));
  StoreRequest request;
  request.op = StoreOp::kGet;
  request.timeout_ns = TimeoutNs(timeout_s);
  StoreReply reply;
  const Status status = Call(request, key, nullptr, timeout_s, &reply, value);
  if (status.code() == TFR_DEADLINE_EXCEEDED) {
    return DeadlineExceeded(StrCat("the key \"", key,
                                   "\" did not appear in the store at ",
                                   address_, " within ", timeout_s, " s"));
  }
  if (status.code() == TFR_NOT_FOUND) {
    return NotFound(
        StrCat("the store at ", address_, " has no key \"", key, "\""));
  }
  return status;
}

Status StoreClient::Gather(const std::string& prefix, int32_t n,
                           double timeout_s, std::vector<std::string>* values,
                           std::vector<int32_t>* missing) {
  if (missing != nullptr) missing->clear();
  TFR_RETURN_IF_ERROR(CheckTimeout(timeout_s));
  if (n < 0) {
    return InvalidArgument(StrCat("`n` must not be negative. Received: n=", n));
  }
  StoreRequest request;
  request.op = StoreOp::kGather;
  request.timeout_ns = TimeoutNs(timeout_s);
  request.count = static_cast<uint32_t>(n);
  StoreReply reply;
  std::string payload;
  const Status status =
      Call(request, prefix, nullptr, timeout_s, &reply, &payload);
  if (status.ok()) return SplitValues(payload, request.count, values);
  if (status.code() != TFR_DEADLINE_EXCEEDED) return status;
  std::vector<int32_t> absent = ReadIndices(payload);
  const Status late = DeadlineExceeded(
      StrCat(absent.size(), " of the ", n, " keys ", prefix,
             "/* did not appear in the store at ", address_, " within ",
             timeout_s, " s; missing: ", ShowIndices(absent)));
  if (missing != nullptr) *missing = std::move(absent);
  return late;
}

Status StoreClient::Call(const StoreRequest& request, const std::string& key,
                         const void* data, double timeout_s, StoreReply* reply,
                         std::string* payload) {
  StoreRequest complete = request;
  complete.key_bytes = static_cast<uint32_t>(
      std::min<size_t>(key.size(), kStoreMaxKeyBytes + 1));
  TFR_RETURN_IF_ERROR(complete.Check());
  const std::lock_guard<std::mutex> lock(mutex_);
  TFR_RETURN_IF_ERROR(broken_);
  const Status status =
      Exchange(complete, key, data, timeout_s, reply, payload);
  if (!status.ok()) {
    broken_ = Unavailable(
        StrCat("lost the store at ", address_, ": ", status.message()));
    socket_.Shutdown();
    return broken_;
  }
  if (reply->code == TFR_OK) return Status::Ok();
  return Status(reply->code, *payload);
}

Status StoreClient::Exchange(const StoreRequest& request,
                             const std::string& key, const void* data,
                             double timeout_s, StoreReply* reply,
                             std::string* payload) {
  const std::string head = request.Encode() + key;
  TFR_RETURN_IF_ERROR(
      socket_.SendAll(head.data(), head.size(), Deadline::After(kStallS)));
  const auto* bytes = static_cast<const char*>(data);
  for (uint64_t at = 0; at < request.value_bytes; at += kStepBytes) {
    const uint64_t step = std::min(kStepBytes, request.value_bytes - at);
    TFR_RETURN_IF_ERROR(
        socket_.SendAll(bytes + at, step, Deadline::After(kStallS)));
  }
  char header[StoreReply::kBytes];
  TFR_RETURN_IF_ERROR(socket_.RecvAll(header, sizeof(header),
                                      Deadline::After(timeout_s + kStallS)));
  TFR_RETURN_IF_ERROR(StoreReply::Decode(header, reply));
  return ReceivePayload(reply->payload_bytes, payload);
}

Status StoreClient::ReceivePayload(uint64_t size, std::string* payload) {
  payload->clear();
  while (payload->size() < size) {
    const uint64_t at = payload->size();
    const uint64_t step = std::min(kStepBytes, size - at);
    payload->resize(at + step);
    TFR_RETURN_IF_ERROR(
        socket_.RecvAll(payload->data() + at, step, Deadline::After(kStallS)));
  }
  return Status::Ok();
}

}  // namespace tfring
