// The store's requests and replies; see store_protocol.h.
#include <memory>
#include <new>
#include <utility>

#include "custom_ops/core/common/wire.h"
#include "custom_ops/core/rendezvous/store_loop.h"

namespace tfring {

void StoreServer::Loop::StartRequest(Connection& c) {
  const Status status = StoreRequest::Decode(c.in.data(), &c.request);
  if (!status.ok()) {
    // Where the next request starts is not known.
    c.close_when_sent = true;
    ReplyError(c, status);
    return;
  }
  c.in.clear();
  c.want = c.request.key_bytes;
  c.stage = Stage::kKey;
}

void StoreServer::Loop::Execute(Connection& c) {
  switch (c.request.op) {
    case StoreOp::kSet:
    case StoreOp::kSetOnce:
      ExecuteSet(c);
      break;
    case StoreOp::kGet:
      ExecuteGet(c);
      break;
    case StoreOp::kGather:
      ExecuteGather(c);
      break;
  }
}

void StoreServer::Loop::ExecuteSet(Connection& c) {
  std::vector<uint64_t> ready;
  StoreReply reply;
  reply.flag = table_.Set(
      c.key,
      std::make_shared<const std::string>(std::exchange(c.in, std::string())),
      c.request.op == StoreOp::kSetOnce, &ready);
  Reply(c, reply, nullptr);
  for (const uint64_t id : ready) AnswerWaiting(id);
}

void StoreServer::Loop::ExecuteGet(Connection& c) {
  StoreTable::Value value = table_.Find(c.key);
  if (value != nullptr) {
    Reply(c, StoreReply(), std::move(value));
  } else if (c.request.timeout_ns == 0) {
    ReplyError(c, NotFound(""));
  } else {
    table_.AwaitKey(c.id, c.key);
    Wait(c);
  }
}

void StoreServer::Loop::ExecuteGather(Connection& c) {
  const std::vector<uint32_t> missing = table_.Missing(c.key, c.request.count);
  if (missing.empty()) {
    AnswerGather(c);
  } else if (c.request.timeout_ns == 0) {
    AnswerMissing(c, missing);
  } else {
    table_.AwaitPrefix(c.id, c.key, c.request.count,
                       static_cast<uint32_t>(missing.size()));
    Wait(c);
  }
}

void StoreServer::Loop::AnswerWaiting(uint64_t id) {
  Connection& c = *connections_.at(id);
  if (c.dead) return;
  try {
    if (c.request.op == StoreOp::kGather) {
      AnswerGather(c);
    } else {
      Reply(c, StoreReply(), table_.Find(c.key));
    }
    UpdateInterest(c);
  } catch (const std::bad_alloc&) {
    Kill(c);
  }
}

void StoreServer::Loop::AnswerGather(Connection& c) {
  StoreReply reply;
  reply.count = c.request.count;
  StoreTable::Value payload;
  const Status status = table_.Gathered(c.key, c.request.count, &payload);
  if (status.ok()) {
    Reply(c, reply, std::move(payload));
  } else {
    ReplyError(c, status);
  }
}

void StoreServer::Loop::AnswerMissing(Connection& c,
                                      const std::vector<uint32_t>& missing) {
  StoreReply reply;
  reply.code = TFR_DEADLINE_EXCEEDED;
  reply.count = static_cast<uint32_t>(missing.size());
  auto payload = std::make_shared<std::string>();
  for (const uint32_t index : missing) AppendInt(index, payload.get());
  Reply(c, reply, std::move(payload));
}

void StoreServer::Loop::Wait(Connection& c) {
  c.in.clear();
  c.stage = Stage::kWaiting;
  const int64_t timeout_ns = c.request.timeout_ns;
  SetTimer(c, timeout_ns < 0
                  ? Deadline::Never()
                  : Deadline::After(static_cast<double>(timeout_ns) * 1e-9));
}

void StoreServer::Loop::Reply(Connection& c, StoreReply reply,
                              StoreTable::Value payload) {
  SetTimer(c, Deadline::Never());
  reply.payload_bytes = payload == nullptr ? 0 : payload->size();
  c.out.push_back(std::make_shared<const std::string>(reply.Encode()));
  if (reply.payload_bytes > 0) c.out.push_back(std::move(payload));
  ExpectHeader(c);
  Send(c);
}

void StoreServer::Loop::ReplyError(Connection& c, const Status& status) {
  StoreReply reply;
  reply.code = status.code();
  Reply(c, reply, std::make_shared<const std::string>(status.message()));
}

}  // namespace tfring
