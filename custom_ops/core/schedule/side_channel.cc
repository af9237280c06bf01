#include "custom_ops/core/schedule/side_channel.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "custom_ops/core/common/thread.h"

namespace tfring {
namespace {

constexpr double kSendSeconds = 5.0;
constexpr uint64_t kWakeEvent = UINT64_MAX;  // else an event is a rank's
constexpr int kEvents = 64;                  // at a time
// A peer whose host vanished without a word is noticed after five seconds.
constexpr int kKeepaliveIdle = 2;
constexpr int kKeepaliveInterval = 1;
constexpr int kKeepaliveCount = 3;

}  // namespace

SideChannel::SideChannel(const GroupMembers* members,
                         std::vector<Socket> sockets, Failures* failures)
    : Control(members, failures) {
  for (Socket& socket : sockets) {
    auto peer = std::make_unique<Peer>();
    peer->open = socket.valid();
    peer->socket = std::move(socket);
    peers_.push_back(std::move(peer));
  }
}

SideChannel::~SideChannel() {
  if (thread_.joinable()) {
    stopping_.store(true, std::memory_order_release);
    Wake();
    thread_.join();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

Status SideChannel::Start() {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return Internal(StrCat("eventfd: ", ErrnoText(errno)));
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) return Internal(StrCat("epoll: ", ErrnoText(errno)));
  TFR_RETURN_IF_ERROR(Watch(wake_fd_, kWakeEvent));
  for (size_t r = 0; r < peers_.size(); ++r) {
    Peer& peer = *peers_[r];
    if (!peer.open) continue;
    TFR_RETURN_IF_ERROR(peer.socket.SetKeepalive(
        kKeepaliveIdle, kKeepaliveInterval, kKeepaliveCount));
    TFR_RETURN_IF_ERROR(Watch(peer.socket.fd(), r));
  }
  thread_ = StartThread("tfring-control", [this] { Run(); });
  return Status::Ok();
}

void SideChannel::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread wakes anyway.
  static_cast<void>(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
}

// epoll, not poll: of thousands of connections only those that have something
// to say cost anything.
void SideChannel::Run() {
  std::vector<epoll_event> events(kEvents);
  for (;;) {
    const int timeout_ms = NextInquiry().PollMs();
    const int ready = epoll_wait(epoll_fd_, events.data(), kEvents, timeout_ms);
    if (ready < 0 && errno != EINTR) {
      Abort(StrCat(NameOf(members().rank), ": epoll: ", ErrnoText(errno)));
      return;
    }
    if (stopping_.load(std::memory_order_acquire)) return;
    for (int i = 0; i < ready; ++i) {
      const uint64_t from = events[static_cast<size_t>(i)].data.u64;
      if (from == kWakeEvent) {
        uint64_t woken = 0;
        static_cast<void>(read(wake_fd_, &woken, sizeof(woken)) ==
                          sizeof(woken));
      } else if (const int rank = static_cast<int>(from); !ReceiveFrom(rank)) {
        PeerClosed(rank);
      }
    }
    if (is_hub()) ReportStalls();
  }
}

Status SideChannel::Watch(int fd, uint64_t event) {
  epoll_event wanted = {};
  wanted.events = EPOLLIN;
  wanted.data.u64 = event;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &wanted) == 0) {
    return Status::Ok();
  }
  return Internal(StrCat("epoll_ctl: ", ErrnoText(errno)));
}

// False once the connection is of no more use.
bool SideChannel::ReceiveFrom(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  char buffer[4096];
  const ssize_t got = recv(peer.socket.fd(), buffer, sizeof(buffer), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  peer.received.append(buffer, static_cast<size_t>(got));
  return Receive(rank, &peer.received);
}

void SideChannel::PeerClosed(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  {
    std::lock_guard<std::mutex> lock(peer.send_mutex);
    peer.open = false;
    // A forked child may keep the connection open, and with it the watch.
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, peer.socket.fd(), nullptr);
    peer.socket.Close();
  }
  if (!peer.left) {
    Abort(NameOf(rank) + " is gone: its process died or was killed");
  }
}

void SideChannel::Send(int rank, const std::string& bytes) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  std::lock_guard<std::mutex> lock(peer.send_mutex);
  if (!peer.open) return;
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  // A peer that cannot be told is about to be noticed as dead by the thread
  // that reads its connection; the sender need not act.
  const Status sent = peer.socket.SendAll(bytes.data(), bytes.size(),
                                          Deadline::After(kSendSeconds));
  if (!sent.ok()) peer.socket.Shutdown();
}

void SideChannel::CloseAll() {
  for (const auto& peer : peers_) peer->socket.Close();
  if (wake_fd_ >= 0) close(wake_fd_);
  wake_fd_ = -1;
  if (epoll_fd_ >= 0) close(epoll_fd_);
  epoll_fd_ = -1;
}

}  // namespace tfring
