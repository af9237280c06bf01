// How control messages travel: one connection from every rank to rank 0, and a
// thread that sleeps on them. It works when the data path is stuck, and notices
// a peer that died: the kernel closes its connection.
#ifndef TFRING_CORE_SCHEDULE_SIDE_CHANNEL_H_
#define TFRING_CORE_SCHEDULE_SIDE_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/schedule/control.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

class SideChannel : public Control {
 public:
  // `sockets[r]` leads to rank r: all but the own on rank 0, only that of rank
  // 0 elsewhere. `members` are all ranks.
  SideChannel(const GroupMembers* members, std::vector<Socket> sockets,
              Failures* failures);
  ~SideChannel() override;

  Status Start();

  uint64_t messages_sent() const {
    return messages_sent_.load(std::memory_order_relaxed);
  }
  // In a forked child: only closes descriptors.
  void CloseAll();

 private:
  struct Peer {
    Socket socket;
    std::mutex send_mutex;
    std::string received;  // not yet a whole message
    bool left = false;
    bool open = false;
  };

  void Send(int rank, const std::string& bytes) override;
  void OnInquiry() override { Wake(); }
  void OnRankLeft(int rank) override {
    peers_[static_cast<size_t>(rank)]->left = true;
  }

  void Run();
  void Wake();
  Status Watch(int fd, uint64_t event);
  bool ReceiveFrom(int rank);
  void PeerClosed(int rank);

  std::vector<std::unique_ptr<Peer>> peers_;
  int wake_fd_ = -1;
  int epoll_fd_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  std::atomic<uint64_t> messages_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_SIDE_CHANNEL_H_
