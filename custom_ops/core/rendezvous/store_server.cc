#include "custom_ops/core/rendezvous/store_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "custom_ops/core/common/thread.h"
#include "custom_ops/core/rendezvous/store_loop.h"

namespace tfring {
namespace {

// What one connection may move before the others get their turn.
constexpr size_t kTurnBytes = size_t{4} << 20;
constexpr size_t kReceiveBytes = size_t{256} << 10;
constexpr int kTurnAccepts = 64;
constexpr double kAcceptPauseS = 0.1;

// Numbers of epoll events and timers; those of connections follow.
constexpr uint64_t kListenerId = 0;
constexpr uint64_t kWakeId = 1;

// Room for `more` bytes, never more than doubling what has come, whatever size
// the peer claims.
void Reserve(std::string* text, size_t more, uint64_t limit) {
  const size_t needed = text->size() + more;
  if (text->capacity() >= needed) return;
  const uint64_t doubled = std::max<uint64_t>(needed, 2 * text->size());
  text->reserve(static_cast<size_t>(std::min(doubled, limit)));
}

}  // namespace

Status StoreServer::Loop::Start() {
  if (options_.secret.empty()) {
    return InvalidArgument("`secret` must not be empty");
  }
  TFR_RETURN_IF_ERROR(Listener::Open(options_.host, options_.port, &listener_));
  buffer_.resize(kReceiveBytes);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kListenerId;
  bool ok = epoll_ >= 0 && wake_ >= 0 &&
            epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_.fd(), &event) == 0;
  event.data.u64 = kWakeId;
  ok = ok && epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0;
  if (!ok) {
    return Internal(StrCat("cannot start the store: ", ErrnoText(errno)));
  }
  try {
    thread_ = StartThread("tfring-store", [this] { Run(); });
  } catch (const std::system_error& error) {
    return Internal(StrCat("cannot start the store's thread: ", error.what()));
  }
  return Status::Ok();
}

StoreServer::Loop::~Loop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // Fails only if the counter is full, and then the thread wakes anyway.
    const ssize_t written = write(wake_, &one, sizeof(one));
    static_cast<void>(written);
    thread_.join();
  }
  if (wake_ >= 0) close(wake_);
  if (epoll_ >= 0) close(epoll_);
}

void StoreServer::Loop::Run() {
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  while (!stop_) {
    const int timeout_ms =
        timers_.empty() ? -1 : Deadline::AtNs(timers_.begin()->first).PollMs();
    const int count = epoll_wait(epoll_, events, kEvents, timeout_ms);
    for (int i = 0; i < count; ++i) {
      OnEvent(events[i].data.u64, events[i].events);
    }
    RunTimers();
    Reap();
  }
  connections_.clear();
}

void StoreServer::Loop::OnEvent(uint64_t id, uint32_t events) {
  if (id == kWakeId) {
    stop_ = true;
    return;
  }
  if (id == kListenerId) {
    AcceptSome();
    return;
  }
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& c = *found->second;
  if (c.dead) return;
  try {
    OnConnectionEvent(c, events);
  } catch (const std::bad_alloc&) {
    // A value too large for this machine ends its sender, not the server.
    Kill(c);
  }
}

void StoreServer::Loop::OnConnectionEvent(Connection& c, uint32_t events) {
  const bool peer_left = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  if (c.reading()) {
    Receive(c);
  } else if (peer_left) {
    Kill(c);
  } else {
    Send(c);
  }
  UpdateInterest(c);
}

void StoreServer::Loop::RunTimers() {
  const int64_t now_ns = NowNs();
  while (!timers_.empty() && timers_.begin()->first <= now_ns) {
    const uint64_t id = timers_.begin()->second;
    timers_.erase(timers_.begin());
    OnTimer(id);
  }
}

void StoreServer::Loop::OnTimer(uint64_t id) {
  if (id == kListenerId) {
    PauseAccepting(false);
    return;
  }
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& c = *found->second;
  c.timer_ns = 0;
  if (c.dead) return;
  if (c.stage != Stage::kWaiting) {
    Kill(c);
    return;
  }
  table_.StopWaiting(c.id);
  if (c.request.op == StoreOp::kGather) {
    AnswerMissing(c, table_.Missing(c.key, c.request.count));
  } else {
    ReplyError(c, DeadlineExceeded(""));
  }
  UpdateInterest(c);
}

// Connections are freed here only, when nothing refers to them.
void StoreServer::Loop::Reap() {
  for (const uint64_t id : dead_) {
    Connection& c = *connections_.at(id);
    table_.StopWaiting(id);
    SetTimer(c, Deadline::Never());
    unproven_.erase(id);
    // Closing is not enough: a forked child may hold the connection open, and
    // then epoll would report it, by a number nobody knows, for ever.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, c.socket.fd(), nullptr);
    connections_.erase(id);
  }
  dead_.clear();
}

void StoreServer::Loop::AcceptSome() {
  for (int i = 0; i < kTurnAccepts; ++i) {
    Socket socket;
    const Status status = listener_.Accept(Deadline::After(0), &socket);
    if (status.ok()) {
      AddConnection(std::move(socket));
      continue;
    }
    if (status.code() != TFR_DEADLINE_EXCEEDED) OnAcceptFailure();
    return;
  }
}

void StoreServer::Loop::AddConnection(Socket socket) {
  // Finds clients whose host went away; without it they only linger.
  const Status keepalive = socket.SetKeepalive(60, 10, 6);
  static_cast<void>(keepalive);
  const uint64_t id = next_id_++;
  Hello hello;
  hello.purpose = kPurposeStore;
  auto c = std::make_unique<Connection>(id, std::move(socket), options_.secret,
                                        hello);
  if (!c->handshake->Start().ok()) return;
  c->want = c->handshake->BytesWanted();
  c->interest = EPOLLIN;
  epoll_event event = {};
  event.events = c->interest;
  event.data.u64 = id;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, c->socket.fd(), &event) != 0) return;
  SetTimer(*c, Deadline::After(options_.handshake_timeout_s));
  unproven_.insert(id);
  connections_.emplace(id, std::move(c));
}

// Usually no descriptor is left: strangers go before anybody has to wait.
void StoreServer::Loop::OnAcceptFailure() {
  if (!unproven_.empty()) {
    Kill(*connections_.at(*unproven_.begin()));
    return;
  }
  PauseAccepting(true);
}

void StoreServer::Loop::PauseAccepting(bool pause) {
  epoll_event event = {};
  if (!pause) event.events = EPOLLIN;
  event.data.u64 = kListenerId;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_.fd(), &event);
  if (pause) {
    timers_.emplace(Deadline::After(kAcceptPauseS).ns(), kListenerId);
  }
}

void StoreServer::Loop::Receive(Connection& c) {
  size_t turn = 0;
  while (c.reading() && turn < kTurnBytes) {
    const size_t room = static_cast<size_t>(
        std::min<uint64_t>(c.want - c.in.size(), buffer_.size()));
    const ssize_t got = recv(c.socket.fd(), buffer_.data(), room, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      Kill(c);
      return;
    }
    const auto size = static_cast<size_t>(got);
    Reserve(&c.in, size, c.want);
    c.in.append(buffer_.data(), size);
    turn += size;
    // A key may be followed by an empty value.
    while (c.reading() && c.in.size() == c.want) Advance(c);
  }
}

void StoreServer::Loop::Advance(Connection& c) {
  switch (c.stage) {
    case Stage::kHandshake:
      AdvanceHandshake(c);
      break;
    case Stage::kHeader:
      StartRequest(c);
      break;
    case Stage::kKey:
      c.key = std::exchange(c.in, std::string());
      c.want = c.request.value_bytes;
      c.stage = Stage::kValue;
      break;
    case Stage::kValue:
      Execute(c);
      break;
    case Stage::kWaiting:
      break;
  }
}

void StoreServer::Loop::AdvanceHandshake(Connection& c) {
  const Status status =
      c.handshake->Consume(reinterpret_cast<const uint8_t*>(c.in.data()));
  std::string answer = c.handshake->TakeOutput();
  if (!answer.empty()) {
    c.out.push_back(std::make_shared<const std::string>(std::move(answer)));
  }
  c.in.clear();
  if (!status.ok() ||
      (c.handshake->done() && c.handshake->theirs().purpose != kPurposeStore)) {
    c.close_when_sent = true;
  } else if (c.handshake->done()) {
    SetTimer(c, Deadline::Never());
    unproven_.erase(c.id);
    c.handshake.reset();
    ExpectHeader(c);
  } else {
    c.want = c.handshake->BytesWanted();
  }
  Send(c);
}

void StoreServer::Loop::ExpectHeader(Connection& c) {
  c.in.clear();
  c.want = StoreRequest::kBytes;
  c.stage = Stage::kHeader;
}

void StoreServer::Loop::Send(Connection& c) {
  size_t turn = 0;
  while (!c.dead && !c.out.empty() && turn < kTurnBytes) {
    const std::string& first = *c.out.front();
    const size_t size = std::min(first.size() - c.out_offset, kTurnBytes);
    const int more = c.out.size() > 1 ? MSG_MORE : 0;
    const ssize_t sent = send(c.socket.fd(), first.data() + c.out_offset, size,
                              MSG_NOSIGNAL | MSG_DONTWAIT | more);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      Kill(c);
      return;
    }
    c.out_offset += static_cast<size_t>(sent);
    turn += static_cast<size_t>(sent);
    if (c.out_offset == first.size()) {
      c.out.pop_front();
      c.out_offset = 0;
    }
  }
  if (c.out.empty() && c.close_when_sent) Kill(c);
}

void StoreServer::Loop::Kill(Connection& c) {
  if (c.dead) return;
  c.dead = true;
  dead_.push_back(c.id);
}

// A connection that waits or is being sent to is not read from, so that each
// client has one request here at most; only its end is noticed.
void StoreServer::Loop::UpdateInterest(Connection& c) {
  if (c.dead) return;
  uint32_t interest = EPOLLIN;
  if (!c.out.empty()) {
    interest = EPOLLOUT | EPOLLRDHUP;
  } else if (c.stage == Stage::kWaiting) {
    interest = EPOLLRDHUP;
  }
  if (interest == c.interest) return;
  c.interest = interest;
  epoll_event event = {};
  event.events = interest;
  event.data.u64 = c.id;
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, c.socket.fd(), &event) != 0) Kill(c);
}

void StoreServer::Loop::SetTimer(Connection& c, Deadline deadline) {
  if (c.timer_ns != 0) timers_.erase({c.timer_ns, c.id});
  c.timer_ns = deadline.never() ? 0 : deadline.ns();
  if (c.timer_ns != 0) timers_.emplace(c.timer_ns, c.id);
}

StoreServer::StoreServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

StoreServer::~StoreServer() = default;

int StoreServer::port() const { return loop_->port(); }

Status StoreServer::Start(const StoreServerOptions& options,
                          std::unique_ptr<StoreServer>* out) {
  auto loop = std::make_unique<Loop>(options);
  TFR_RETURN_IF_ERROR(loop->Start());
  out->reset(new StoreServer(std::move(loop)));
  return Status::Ok();
}

}  // namespace tfring
