#include "custom_ops/core/schedule/control.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <utility>

#include "custom_ops/core/common/wire.h"

namespace tfring {
namespace {

enum class Type : uint32_t {
  kReady = 1,  // uid, value: digest, extra: alike
  kGo = 2,     // uid, value: verdict
  kStall = 3,  // uid, value: fatal, text: arrived ranks, then the title
  kAbort = 4,  // text
  kLeave = 5,  // value: rank, extra: collectives executed
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
                 Failure* failure, std::function<void(const LogEntry&)> on_go)
    : members_(members),
      failure_(failure),
      on_go_(std::move(on_go)),
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
    const uint64_t one = 1;
    static_cast<void>(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  if (stop_fd_ >= 0) close(stop_fd_);
}

Status Control::Start() {
  for (const auto& peer : peers_) {
    if (!peer->open) continue;
    TFR_RETURN_IF_ERROR(peer->socket.SetKeepalive(
        kKeepaliveIdle, kKeepaliveInterval, kKeepaliveCount));
  }
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0) return Internal(StrCat("eventfd: ", ErrnoText(errno)));
  thread_ = std::thread([this] { Run(); });
  return Status::Ok();
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

void Control::Stalled(uint64_t uid, const std::string& title,
                      const std::set<int>& arrived, bool fatal) {
  Message message;
  message.type = Type::kStall;
  message.uid = uid;
  message.value = fatal ? 1 : 0;
  for (const int rank : arrived) message.text += StrCat(rank, " ");
  message.text += "\n" + title;
  if (is_hub()) {
    HandleStall(message);
  } else {
    ToHub(message);
  }
}

void Control::Abort(const std::string& text) {
  if (!failure_->Abort(Unavailable(text))) return;
  Message message;
  message.type = Type::kAbort;
  message.text = text;
  if (is_hub()) {
    Spread(message, members_->rank);
  } else {
    ToHub(message);
  }
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
    fds.push_back({stop_fd_, POLLIN, 0});
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) {
      Abort(StrCat(NameOf(members_->rank), ": poll: ", ErrnoText(errno)));
      return;
    }
    if (fds.back().revents != 0) return;
    for (size_t r = 0; r < peers_.size(); ++r) {
      const int rank = static_cast<int>(r);
      if (fds[r].revents != 0 && !ReceiveFrom(rank)) PeerClosed(rank);
    }
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
      on_go_({message.uid, static_cast<Verdict>(message.value)});
      return;
    case Type::kStall:
      if (is_hub()) HandleStall(message);
      return;
    case Type::kAbort:
      failure_->Abort(Unavailable(message.text));
      if (is_hub()) Spread(message, from);
      return;
    case Type::kLeave: {
      const int rank = static_cast<int>(message.value);
      if (rank < 0 || rank >= members_->size) return;
      if (rank == from) peers_[static_cast<size_t>(from)]->left = true;
      failure_->Leave(Unavailable(NameOf(rank) + " has shut down"),
                      message.extra);
      if (is_hub()) Spread(message, from);
      return;
    }
  }
}

void Control::HandleReady(int host, const Message& message) {
  std::lock_guard<std::mutex> lock(order_mutex_);
  const std::optional<LogEntry> entry = hub_.HostReady(
      host, message.uid, message.value, message.extra != 0);
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
  on_go_(*entry);
}

void Control::HandleStall(const Message& message) {
  std::istringstream words(message.text);
  std::string ranks;
  std::string title;
  std::getline(words, ranks);
  std::getline(words, title);
  std::istringstream numbers(ranks);
  std::set<int> arrived;
  for (int rank = 0; numbers >> rank;) arrived.insert(rank);
  const std::string text = hub_.Stalled(message.uid, title, arrived);
  if (message.value != 0) {
    Abort(text);
  } else {
    std::fprintf(stderr, "tfring: warning: %s\n", text.c_str());
  }
}

void Control::CloseAll() {
  for (const auto& peer : peers_) peer->socket.Close();
  if (stop_fd_ >= 0) close(stop_fd_);
  stop_fd_ = -1;
}

}  // namespace tfring
