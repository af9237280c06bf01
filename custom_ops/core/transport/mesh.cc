#include "custom_ops/core/transport/mesh.h"

#include <errno.h>

#include <algorithm>
#include <utility>

namespace tfring {
namespace {

constexpr double kLookAgainSeconds = 0.1;
// A peer's death closes its connections in any order; rank 0 hears of it and
// says so within milliseconds.
constexpr double kReasonSeconds = 2.0;
constexpr int kReasonLookMs = 2;

}  // namespace

Mesh::Mesh(int host, std::vector<HostSockets> sockets,
           std::vector<std::string> labels, const Failure* failure)
    : host_(host), labels_(std::move(labels)), failure_(failure) {
  for (HostSockets& list : sockets) {
    std::vector<Lane>& lanes = hosts_.emplace_back();
    for (Socket& socket : list) lanes.emplace_back(std::move(socket));
  }
}

Lane& Mesh::LaneOf(int host, uint64_t stripe) {
  std::vector<Lane>& lanes = hosts_[static_cast<size_t>(host)];
  return lanes[stripe % lanes.size()];
}

void Mesh::Send(int host, uint64_t stripe, uint64_t tag,
                const std::vector<iovec>& parts, int* pending) {
  uint64_t bytes = MessageHeader::kSize;
  for (const iovec& part : parts) bytes += part.iov_len;
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  LaneOf(host, stripe).Send(tag, parts, pending);
}

void Mesh::Receive(int host, uint64_t stripe, uint64_t tag,
                   std::vector<iovec> parts, int* pending) {
  LaneOf(host, stripe).Receive(tag, std::move(parts), pending);
}

Status Mesh::Poke(uint64_t index) {
  uint64_t moved = 0;
  return Move(index, &moved);
}

Status Mesh::Move(uint64_t index, uint64_t* moved) {
  if (!broken_.ok()) return broken_;
  const Status status = MoveLanes(moved);
  return status.ok() ? status : Break(ReasonOf(index, status));
}

// A connection that ends is a consequence. What the side channel says names who
// died or left, which need not be the rank at the other end.
Status Mesh::ReasonOf(uint64_t index, const Status& status) const {
  if (status.code() != TFR_UNAVAILABLE) return status;
  const Deadline deadline = Deadline::After(kReasonSeconds);
  while (!failure_->Stops(index)) {
    if (deadline.expired()) return status;
    poll(nullptr, 0, kReasonLookMs);
  }
  return failure_->status();
}

Status Mesh::Break(Status status) {
  broken_ = status;
  return status;
}

Status Mesh::MoveLanes(uint64_t* moved) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    // The next one first, so that not all hosts send to the same.
    const size_t h = (static_cast<size_t>(host_) + 1 + i) % hosts_.size();
    for (Lane& lane : hosts_[h]) {
      if (lane.wants_out()) {
        TFR_RETURN_IF_ERROR(lane.MoveOut(labels_[h], moved));
      }
      if (lane.wants_in()) {
        TFR_RETURN_IF_ERROR(lane.MoveIn(labels_[h], moved));
      }
    }
  }
  return Status::Ok();
}

void Mesh::Watch(int event_fd) {
  watched_.clear();
  for (const std::vector<Lane>& lanes : hosts_) {
    for (const Lane& lane : lanes) {
      const int events =
          (lane.wants_out() ? POLLOUT : 0) | (lane.wants_in() ? POLLIN : 0);
      if (events == 0) continue;
      watched_.push_back({lane.fd(), static_cast<short>(events), 0});
    }
  }
  watched_.push_back({event_fd, POLLIN, 0});
}

Status Mesh::Turn(uint64_t index, Deadline deadline) {
  for (uint64_t moved = 0;;) {
    if (failure_->Stops(index)) return Break(failure_->status());
    TFR_RETURN_IF_ERROR(Move(index, &moved));
    if (moved > 0) return Status::Ok();
    // A failure that does not concern this collective must not spin the loop.
    // One that does may still follow, which its event does not tell then.
    const bool any = failure_->any();
    Watch(any ? -1 : failure_->event_fd());
    const Deadline look =
        any ? Deadline::Earlier(deadline, Deadline::After(kLookAgainSeconds))
            : deadline;
    const int ready = poll(watched_.data(), watched_.size(), look.PollMs());
    if (ready < 0 && errno != EINTR) {
      return Break(Internal(StrCat("poll: ", ErrnoText(errno))));
    }
    if (ready <= 0 && deadline.expired()) {
      return DeadlineExceeded(StrCat("no data came from or went to ", Stuck()));
    }
  }
}

// The hosts that have not taken or not sent what is due.
std::string Mesh::Stuck() const {
  std::string stuck;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    bool idle = true;
    for (const Lane& lane : hosts_[h]) idle = idle && lane.idle();
    if (!idle) stuck += StrCat(stuck.empty() ? "" : ", ", labels_[h]);
  }
  return stuck;
}

char* Mesh::Memory(size_t place, uint64_t bytes) {
  constexpr uint64_t kAlignment = 64;
  bytes = std::max(bytes, kAlignment);
  if (place >= memory_.size()) memory_.resize(place + 1);
  Piece& piece = memory_[place];
  if (piece.bytes < bytes) {
    memory_bytes_.fetch_add(bytes - piece.bytes, std::memory_order_relaxed);
    piece.data.reset(new char[bytes + kAlignment]);
    piece.bytes = bytes;
  }
  const auto begin = reinterpret_cast<uintptr_t>(piece.data.get());
  return piece.data.get() + (kAlignment - begin % kAlignment) % kAlignment;
}

void Mesh::CloseAll() {
  for (std::vector<Lane>& lanes : hosts_) {
    for (Lane& lane : lanes) lane.Close();
  }
}

}  // namespace tfring
