#include "custom_ops/core/schedule/control.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "custom_ops/core/common/thread.h"
#include "custom_ops/core/common/wire.h"

namespace tfring {
namespace {

enum class Type : uint32_t {
  kReady = 1,  // uid, value: digest, extra: alike
  kGo = 2,     // uid, value: verdict
  kStall = 3,  // uid, value: fatal, text: title
  kAsk = 4,    // uid
  kHave = 5,   // uid, value: 1 if it is pending there
  kAbort = 6,  // text
  kLeave = 7,  // value: rank, extra: collectives executed
};

constexpr uint32_t kMaxText = 1 << 16;
constexpr size_t kHeaderBytes = 32;
constexpr double kSendSeconds = 5.0;
// A peer whose host vanished without a word is noticed after five seconds.
constexpr int kKeepaliveIdle = 2;
constexpr int kKeepaliveInterval = 1;
constexpr int kKeepaliveCount = 3;

}  // namespace

struct Control::Message {
  Type type = Type::kAbort;
  uint64_t uid = 0;
  uint64_t value = 0;
  uint64_t extra = 0;
  std::string text;

  std::string Encode() const {
    std::string bytes;
    const std::string cut = text.substr(0, kMaxText);
    AppendInt(static_cast<uint32_t>(type), &bytes);
    AppendInt(static_cast<uint32_t>(cut.size()), &bytes);
    AppendInt(uid, &bytes);
    AppendInt(value, &bytes);
    AppendInt(extra, &bytes);
    return bytes + cut;
  }
};

Control::Control(const GroupMembers* members, std::vector<Socket> sockets,
                 Failure* failure, ControlEvents events)
    : members_(members),
      failure_(failure),
      events_(std::move(events)),
      hub_(members) {
  for (Socket& socket : sockets) {
    auto peer = std::make_unique<Peer>();
    peer->open = socket.valid();
    peer->socket = std::move(socket);
    peers_.push_back(std::move(peer));
  }
}

Control::~Control() {
  if (thread_.joinable()) {
    stopping_.store(true, std::memory_order_release);
    Wake();
    thread_.join();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
}

Status Control::Start() {
  for (const auto& peer : peers_) {
    if (!peer->open) continue;
    TFR_RETURN_IF_ERROR(peer->socket.SetKeepalive(
        kKeepaliveIdle, kKeepaliveInterval, kKeepaliveCount));
  }
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return Internal(StrCat("eventfd: ", ErrnoText(errno)));
  thread_ = StartThread("tfring-control", [this] { Run(); });
  return Status::Ok();
}

void Control::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread wakes anyway.
  static_cast<void>(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
}

std::string Control::NameOf(int rank) const {
  const int host = members_->host_of[static_cast<size_t>(rank)];
  return StrCat("rank ", rank, " (host ",
                members_->host_names[static_cast<size_t>(host)], ")");
}

// --- what this rank says ----------------------------------------------------

void Control::HostReady(uint64_t uid, uint64_t digest, bool alike) {
  Message message;
  message.type = Type::kReady;
  message.uid = uid;
  message.value = digest;
  message.extra = alike ? 1 : 0;
  if (is_hub()) {
    HandleReady(members_->host, message);
  } else {
    ToHub(message);
  }
}

void Control::Stalled(uint64_t uid, const std::string& title, bool fatal) {
  Message message;
  message.type = Type::kStall;
  message.uid = uid;
  message.value = fatal ? 1 : 0;
  message.text = title;
  if (is_hub()) {
    HandleStall(message);
  } else {
    ToHub(message);
  }
}

void Control::Abort(const std::string& text) {
  if (failure_->aborted()) return;
  Message message;
  message.type = Type::kAbort;
  message.text = text;
  // Others first: once this rank knows, it may shut down, and the others
  // should hear the reason rather than that.
  if (is_hub()) {
    Spread(message, members_->rank);
  } else {
    ToHub(message);
  }
  failure_->Abort(Unavailable(text));
}

void Control::Leave(uint64_t executed) {
  Message message;
  message.type = Type::kLeave;
  message.value = static_cast<uint64_t>(members_->rank);
  message.extra = executed;
  if (is_hub()) {
    Spread(message, members_->rank);
  } else {
    ToHub(message);
  }
}

void Control::ToHub(const Message& message) { Send(0, message); }

void Control::Spread(const Message& message, int except) {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank != except) Send(rank, message);
  }
}

void Control::Send(int rank, const Message& message) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  const std::string bytes = message.Encode();
  std::lock_guard<std::mutex> lock(peer.send_mutex);
  if (!peer.open) return;
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  // A peer that cannot be told is about to be noticed as dead by the thread
  // that reads its connection; the sender need not act.
  const Status sent = peer.socket.SendAll(bytes.data(), bytes.size(),
                                          Deadline::After(kSendSeconds));
  if (!sent.ok()) peer.socket.Shutdown();
}

// --- what others say --------------------------------------------------------

void Control::Run() {
  for (;;) {
    std::vector<pollfd> fds;
    for (const auto& peer : peers_) {
      fds.push_back({peer->open ? peer->socket.fd() : -1, POLLIN, 0});
    }
    fds.push_back({wake_fd_, POLLIN, 0});
    const int timeout_ms = is_hub() ? hub_.NextInquiry().PollMs() : -1;
    if (poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) {
      Abort(StrCat(NameOf(members_->rank), ": poll: ", ErrnoText(errno)));
      return;
    }
    uint64_t woken = 0;
    static_cast<void>(read(wake_fd_, &woken, sizeof(woken)) == sizeof(woken));
    if (stopping_.load(std::memory_order_acquire)) return;
    for (size_t r = 0; r < peers_.size(); ++r) {
      const int rank = static_cast<int>(r);
      if (fds[r].revents != 0 && !ReceiveFrom(rank)) PeerClosed(rank);
    }
    if (is_hub()) ReportStalls();
  }
}

// False once the connection is of no more use.
bool Control::ReceiveFrom(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  char buffer[4096];
  const ssize_t got = recv(peer.socket.fd(), buffer, sizeof(buffer), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  peer.received.append(buffer, static_cast<size_t>(got));
  size_t used = 0;
  while (peer.received.size() - used >= kHeaderBytes) {
    const char* header = peer.received.data() + used;
    const auto text_bytes = ReadInt<uint32_t>(header + 4);
    if (text_bytes > kMaxText) return false;
    if (peer.received.size() - used < kHeaderBytes + text_bytes) break;
    Message message;
    message.type = static_cast<Type>(ReadInt<uint32_t>(header));
    message.uid = ReadInt<uint64_t>(header + 8);
    message.value = ReadInt<uint64_t>(header + 16);
    message.extra = ReadInt<uint64_t>(header + 24);
    message.text.assign(header + kHeaderBytes, text_bytes);
    used += kHeaderBytes + text_bytes;
    Handle(rank, message);
  }
  peer.received.erase(0, used);
  return true;
}

void Control::PeerClosed(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  {
    std::lock_guard<std::mutex> lock(peer.send_mutex);
    peer.open = false;
    peer.socket.Close();
  }
  if (!peer.left) {
    Abort(NameOf(rank) + " is gone: its process died or was killed");
  }
}

void Control::Handle(int from, const Message& message) {
  switch (message.type) {
    case Type::kReady:
      if (is_hub()) {
        HandleReady(members_->host_of[static_cast<size_t>(from)], message);
      }
      return;
    case Type::kGo:
      events_.go({message.uid, static_cast<Verdict>(message.value)});
      return;
    case Type::kStall:
      if (is_hub()) HandleStall(message);
      return;
    case Type::kAsk: {
      Message answer;
      answer.type = Type::kHave;
      answer.uid = message.uid;
      answer.value = events_.is_pending(message.uid) ? 1 : 0;
      ToHub(answer);
      return;
    }
    case Type::kHave:
      if (is_hub()) hub_.Answer(message.uid, from, message.value != 0);
      return;
    case Type::kAbort:
      if (is_hub()) Spread(message, from);
      failure_->Abort(Unavailable(message.text));
      return;
    case Type::kLeave: {
      const int rank = static_cast<int>(message.value);
      if (rank < 0 || rank >= members_->size) return;
      if (rank == from) peers_[static_cast<size_t>(from)]->left = true;
      if (is_hub()) Spread(message, from);
      failure_->Leave(Unavailable(NameOf(rank) + " has shut down"),
                      message.extra);
      return;
    }
  }
}

void Control::HandleReady(int host, const Message& message) {
  std::lock_guard<std::mutex> lock(order_mutex_);
  const std::optional<LogEntry> entry =
      hub_.HostReady(host, message.uid, message.value, message.extra != 0);
  if (!entry.has_value()) return;
  Message go;
  go.type = Type::kGo;
  go.uid = entry->uid;
  go.value = static_cast<uint64_t>(entry->verdict);
  for (int h = 0; h < members_->host_count(); ++h) {
    if (h != members_->host) {
      Send(members_->on_host[static_cast<size_t>(h)].front(), go);
    }
  }
  events_.go(*entry);
}

void Control::HandleStall(const Message& message) {
  if (!hub_.StartInquiry(message.uid, message.text, message.value != 0)) return;
  Message ask;
  ask.type = Type::kAsk;
  ask.uid = message.uid;
  Spread(ask, members_->rank);
  hub_.Answer(message.uid, members_->rank, events_.is_pending(message.uid));
  Wake();
}

void Control::ReportStalls() {
  for (const StallReport& report : hub_.FinishedInquiries()) {
    if (report.fatal) {
      Abort(report.text);
    } else {
      std::fprintf(stderr, "tfring: warning: %s\n", report.text.c_str());
    }
  }
}

void Control::CloseAll() {
  for (const auto& peer : peers_) peer->socket.Close();
  if (wake_fd_ >= 0) close(wake_fd_);
  wake_fd_ = -1;
}

}  // namespace tfring
