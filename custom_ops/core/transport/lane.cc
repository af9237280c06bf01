#include "custom_ops/core/transport/lane.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfring {
namespace {

// Parts that one system call moves.
constexpr size_t kBatch = 64;
// A lane gives way to the others after this much.
constexpr uint64_t kTurnBytes = uint64_t{1} << 20;

uint64_t TotalBytes(const std::vector<iovec>& parts) {
  uint64_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

bool MustWait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

Status Broken(const std::string& label, int error) {
  return Unavailable(
      StrCat("the data connection to ", label, ": ", ErrnoText(error)));
}

}  // namespace

uint64_t Lane::Message::Skip(uint64_t bytes) {
  while (next < parts.size()) {
    iovec& part = parts[next];
    const size_t step = std::min<uint64_t>(bytes, part.iov_len);
    part.iov_base = static_cast<char*>(part.iov_base) + step;
    part.iov_len -= step;
    bytes -= step;
    if (part.iov_len > 0) break;
    ++next;
  }
  return bytes;
}

// --- sending ----------------------------------------------------------------

void Lane::Send(uint64_t tag, const std::vector<iovec>& parts, int* pending) {
  Message& message = outgoing_.emplace_back();
  message.header = {tag, TotalBytes(parts)};
  message.encoded = message.header.Encode();
  message.pending = pending;
  message.parts.reserve(parts.size() + 1);
  message.parts.push_back({message.encoded.data(), message.encoded.size()});
  message.parts.insert(message.parts.end(), parts.begin(), parts.end());
}

Status Lane::MoveOut(const std::string& label, uint64_t* moved) {
  const uint64_t limit = *moved + kTurnBytes;
  while (!outgoing_.empty() && *moved < limit) {
    std::array<iovec, kBatch> batch;
    size_t count = 0;
    for (const Message& one : outgoing_) {
      for (size_t i = one.next; i < one.parts.size() && count < kBatch; ++i) {
        batch[count++] = one.parts[i];
      }
      if (count == kBatch) break;
    }
    msghdr message = {};
    message.msg_iov = batch.data();
    message.msg_iovlen = count;
    const ssize_t sent =
        sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return MustWait(errno) ? Status::Ok() : Broken(label, errno);
    }
    *moved += static_cast<uint64_t>(sent);
    uint64_t left = static_cast<uint64_t>(sent);
    while (!outgoing_.empty()) {
      left = outgoing_.front().Skip(left);
      if (!outgoing_.front().done()) break;
      --*outgoing_.front().pending;
      outgoing_.pop_front();
    }
  }
  return Status::Ok();
}

// --- receiving --------------------------------------------------------------

void Lane::Receive(uint64_t tag, std::vector<iovec> parts, int* pending) {
  Message& message = incoming_[tag];
  message.header = {tag, TotalBytes(parts)};
  message.parts = std::move(parts);
  message.pending = pending;
  message.Skip(0);
  highest_ = tag;
  early_ = false;
}

Status Lane::MoveIn(const std::string& label, uint64_t* moved) {
  const uint64_t limit = *moved + kTurnBytes;
  for (bool more = true; more;) {
    TFR_RETURN_IF_ERROR(TakeHeader(label));
    if (current_ != nullptr) {
      TakeAhead();
      if (current_->done()) {
        FinishIncoming();
        continue;
      }
    }
    if (!wants_in() || *moved >= limit) return Status::Ok();
    TFR_RETURN_IF_ERROR(ReadMore(label, moved, &more));
  }
  return Status::Ok();
}

// Finds the message that the next header, if it is here, belongs to.
Status Lane::TakeHeader(const std::string& label) {
  if (current_ != nullptr || ahead() < MessageHeader::kSize) {
    return Status::Ok();
  }
  MessageHeader::Encoded encoded;
  std::memcpy(encoded.data(), &buffer_[ahead_begin_], encoded.size());
  const MessageHeader got = MessageHeader::Decode(encoded);
  const auto found = incoming_.find(got.tag);
  if (found == incoming_.end()) {
    early_ = got.tag > highest_;
    if (early_) return Status::Ok();
    return Internal(StrCat("data from ", label, " is out of step: tag ",
                           got.tag, " with ", got.bytes,
                           " bytes came, which is not expected"));
  }
  if (!(got == found->second.header)) {
    return Internal(StrCat("data from ", label, " is out of step: tag ",
                           got.tag, " came with ", got.bytes, " bytes, ",
                           found->second.header.bytes, " were due"));
  }
  ahead_begin_ += MessageHeader::kSize;
  current_ = &found->second;
  return Status::Ok();
}

// Gives the current message what was read ahead of it.
void Lane::TakeAhead() {
  while (ahead() > 0 && !current_->done()) {
    const iovec& part = current_->parts[current_->next];
    const size_t bytes = std::min<size_t>(ahead(), part.iov_len);
    std::memcpy(part.iov_base, &buffer_[ahead_begin_], bytes);
    ahead_begin_ += bytes;
    current_->Skip(bytes);
  }
}

void Lane::FinishIncoming() {
  --*current_->pending;
  incoming_.erase(current_->header.tag);
  current_ = nullptr;
}

// One read: the rest of the current message, then ahead. `*more` is false when
// there is no more to read now.
Status Lane::ReadMore(const std::string& label, uint64_t* moved, bool* more) {
  std::copy(buffer_.begin() + ahead_begin_, buffer_.begin() + ahead_end_,
            buffer_.begin());
  ahead_end_ = ahead();
  ahead_begin_ = 0;
  std::array<iovec, kBatch + 1> batch;
  size_t count = 0;
  uint64_t wanted = 0;
  if (current_ != nullptr) {
    const std::vector<iovec>& parts = current_->parts;
    for (size_t i = current_->next; i < parts.size() && count < kBatch; ++i) {
      wanted += parts[i].iov_len;
      batch[count++] = parts[i];
    }
  }
  // Not past parts that this call has no room for.
  const bool ahead_too =
      current_ == nullptr || current_->next + count == current_->parts.size();
  if (ahead_too) {
    batch[count++] = {&buffer_[ahead_end_], buffer_.size() - ahead_end_};
  }
  msghdr message = {};
  message.msg_iov = batch.data();
  message.msg_iovlen = count;
  const ssize_t got = recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
  if (got == 0) {
    return Unavailable(StrCat(label, " closed its data connection"));
  }
  if (got < 0) {
    *more = errno == EINTR;
    return *more || MustWait(errno) ? Status::Ok() : Broken(label, errno);
  }
  *moved += static_cast<uint64_t>(got);
  *more = static_cast<uint64_t>(got) >= wanted;
  const uint64_t body = std::min<uint64_t>(static_cast<uint64_t>(got), wanted);
  if (current_ != nullptr) current_->Skip(body);
  ahead_end_ += static_cast<uint64_t>(got) - body;
  return Status::Ok();
}

}  // namespace tfring
