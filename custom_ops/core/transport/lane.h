// One of the data connections between two hosts.
//
// Messages leave in the order in which they were given. At the other end each
// goes straight to the place that was named for its tag; one whose tag is not
// yet expected waits in the kernel's buffers, and so does what follows it.
//
// A header is read together with what follows it, as far as that fits a small
// buffer, so that a short message costs one system call. Nothing is stored
// before its header has been checked.
#ifndef TFRING_CORE_TRANSPORT_LANE_H_
#define TFRING_CORE_TRANSPORT_LANE_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/message_header.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

class Lane {
 public:
  Lane() = default;
  explicit Lane(Socket socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.fd(); }
  void Close() { socket_.Close(); }

  // A message to send, and the place for one to come. `parts` stay as they are
  // until `*pending` has been reduced by one. Tags of receives grow, from 1.
  void Send(uint64_t tag, const std::vector<iovec>& parts, int* pending);
  void Receive(uint64_t tag, std::vector<iovec> parts, int* pending);

  bool wants_out() const { return !outgoing_.empty(); }
  bool wants_in() const { return !incoming_.empty() && !early_; }
  // For which nothing more can be done before something comes or goes.
  bool idle() const { return outgoing_.empty() && incoming_.empty(); }

  // Moves what can be moved without waiting; `*moved` grows by its bytes.
  Status MoveOut(const std::string& label, uint64_t* moved);
  Status MoveIn(const std::string& label, uint64_t* moved);

 private:
  struct Message {
    MessageHeader header;
    MessageHeader::Encoded encoded;
    std::vector<iovec> parts;  // what is left
    size_t next = 0;           // the first part that is not done
    int* pending = nullptr;

    bool done() const { return next == parts.size(); }
    // Counts `bytes` of the first parts as done; returns what is too much.
    uint64_t Skip(uint64_t bytes);
  };

  Status TakeHeader(const std::string& label);
  void TakeAhead();
  Status ReadMore(const std::string& label, uint64_t* moved, bool* more);
  void FinishIncoming();
  uint64_t ahead() const { return ahead_end_ - ahead_begin_; }

  Socket socket_;
  std::deque<Message> outgoing_;
  std::map<uint64_t, Message> incoming_;  // by tag
  Message* current_ = nullptr;            // of incoming_: its header has come
  bool early_ = false;    // the next header's tag is not expected yet
  uint64_t highest_ = 0;  // tag that was ever expected
  std::array<char, 1024> buffer_;
  size_t ahead_begin_ = 0;  // what was read ahead
  size_t ahead_end_ = 0;
};

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_LANE_H_
