#include "custom_ops/core/transport/mesh.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "custom_ops/core/transport/message_header.h"

namespace tfring {
namespace {

uint64_t TotalBytes(const std::vector<iovec>& parts) {
  uint64_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

// One direction of one connection: a list of parts and how far it has come.
class Flow {
 public:
  void Start(MessageHeader::Encoded* header, const std::vector<iovec>& parts) {
    parts_.push_back({header->data(), header->size()});
    for (const iovec& part : parts) {
      if (part.iov_len > 0) parts_.push_back(part);
    }
  }
  bool done() const { return next_ == parts_.size(); }
  bool past_header() const { return next_ > 0; }

  // Moves what can be moved now. `wanted` limits a receiver to the header.
  Status Move(int fd, bool sending, const std::string& label) {
    while (!done()) {
      const bool header_only = !sending && !past_header();
      msghdr message = {};
      message.msg_iov = &parts_[next_];
      message.msg_iovlen =
          header_only ? 1 : std::min<size_t>(parts_.size() - next_, IOV_MAX);
      const ssize_t moved = sending ? sendmsg(fd, &message, MSG_NOSIGNAL)
                                    : recvmsg(fd, &message, 0);
      if (moved == 0 && !sending) {
        return Unavailable(StrCat(label, " closed its data connection"));
      }
      if (moved < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return Status::Ok();
        return Unavailable(
            StrCat("the data connection to ", label, ": ", ErrnoText(errno)));
      }
      Skip(static_cast<size_t>(moved));
      if (header_only && past_header()) return Status::Ok();
    }
    return Status::Ok();
  }

 private:
  void Skip(size_t moved) {
    while (moved > 0) {
      iovec& part = parts_[next_];
      const size_t step = std::min(moved, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      moved -= step;
      if (part.iov_len == 0) ++next_;
    }
  }

  std::vector<iovec> parts_;
  size_t next_ = 0;
};

struct Link {
  int fd = -1;
  int host = 0;
  Flow out;
  Flow in;
  MessageHeader::Encoded sent;
  MessageHeader::Encoded got;
  MessageHeader expected;
  bool checked = false;

  bool done() const { return out.done() && in.done(); }
};

Status CheckHeader(Link* link, const std::string& label) {
  if (link->checked || !link->in.past_header()) return Status::Ok();
  link->checked = true;
  const MessageHeader got = MessageHeader::Decode(link->got);
  if (got == link->expected) return Status::Ok();
  return Internal(StrCat("data from ", label, " is out of step: tag ", got.tag,
                         " with ", got.bytes, " bytes came, tag ",
                         link->expected.tag, " with ", link->expected.bytes,
                         " bytes was due"));
}

Status MoveLink(Link* link, short events, const std::string& label) {
  if ((events & (POLLOUT | POLLERR | POLLHUP)) != 0 && !link->out.done()) {
    TFR_RETURN_IF_ERROR(link->out.Move(link->fd, true, label));
  }
  if ((events & (POLLIN | POLLERR | POLLHUP)) != 0) {
    // The header first: nothing is stored before it has been checked.
    if (!link->in.past_header()) {
      TFR_RETURN_IF_ERROR(link->in.Move(link->fd, false, label));
      TFR_RETURN_IF_ERROR(CheckHeader(link, label));
    }
    if (link->in.past_header() && !link->in.done()) {
      TFR_RETURN_IF_ERROR(link->in.Move(link->fd, false, label));
    }
  }
  return Status::Ok();
}

// Fills `fds` with the links that have work left; the failure event is last.
std::vector<pollfd> WatchList(const std::vector<std::unique_ptr<Link>>& links,
                              int event_fd) {
  std::vector<pollfd> fds;
  for (const auto& link : links) {
    short events = 0;
    if (!link->out.done()) events |= POLLOUT;
    if (!link->in.done()) events |= POLLIN;
    fds.push_back({link->done() ? -1 : link->fd, events, 0});
  }
  fds.push_back({event_fd, POLLIN, 0});
  return fds;
}

}  // namespace

Mesh::Mesh(int host, std::vector<Socket> sockets,
           std::vector<std::string> labels, const Failure* failure)
    : host_(host),
      sockets_(std::move(sockets)),
      labels_(std::move(labels)),
      failure_(failure) {}

Status Mesh::Exchange(uint64_t tag, std::vector<Transfer> transfers,
                      uint64_t index, Deadline deadline) {
  std::vector<std::unique_ptr<Link>> links;
  for (const Transfer& transfer : transfers) {
    auto link = std::make_unique<Link>();
    link->fd = sockets_[static_cast<size_t>(transfer.host)].fd();
    link->host = transfer.host;
    const uint64_t bytes = TotalBytes(transfer.send);
    link->sent = MessageHeader{tag, bytes}.Encode();
    link->expected = {tag, TotalBytes(transfer.receive)};
    link->out.Start(&link->sent, transfer.send);
    link->in.Start(&link->got, transfer.receive);
    bytes_sent_.fetch_add(bytes + MessageHeader::kSize,
                          std::memory_order_relaxed);
    links.push_back(std::move(link));
  }
  bool watch_event = true;
  const auto busy = [](const auto& link) { return !link->done(); };
  while (std::any_of(links.begin(), links.end(), busy)) {
    if (failure_->Stops(index)) return failure_->status();
    // A failure that does not concern this collective must not spin the loop.
    if (failure_->any()) watch_event = false;
    std::vector<pollfd> fds =
        WatchList(links, watch_event ? failure_->event_fd() : -1);
    const int ready = poll(fds.data(), fds.size(), deadline.PollMs());
    if (ready < 0 && errno != EINTR) {
      return Internal(StrCat("poll: ", ErrnoText(errno)));
    }
    if (ready <= 0 && deadline.expired()) {
      std::string stuck;
      for (const auto& link : links) {
        if (link->done()) continue;
        stuck += (stuck.empty() ? "" : ", ") +
                 labels_[static_cast<size_t>(link->host)];
      }
      return DeadlineExceeded(StrCat("no data from or to ", stuck));
    }
    for (size_t i = 0; ready > 0 && i < links.size(); ++i) {
      TFR_RETURN_IF_ERROR(
          MoveLink(links[i].get(), fds[i].revents,
                   labels_[static_cast<size_t>(links[i]->host)]));
    }
  }
  return Status::Ok();
}

void Mesh::CloseAll() {
  for (Socket& socket : sockets_) socket.Close();
}

}  // namespace tfring
