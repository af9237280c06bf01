// The side channel: one connection from every rank to rank 0, and a thread that
// sleeps on them. It carries errors when the data path is stuck, notices a
// peer that died (the kernel closes its connection), and, when a job has
// several hosts, the agreement between them: "my host has it" to rank 0, "run
// it" back. On one host it carries nothing while all is well.
#ifndef TFRING_CORE_SCHEDULE_CONTROL_H_
#define TFRING_CORE_SCHEDULE_CONTROL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/agreement.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/hub.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

// What the side channel asks of the rank; called from its thread.
struct ControlEvents {
  // Host leader: all hosts have the collective; same order on every leader.
  std::function<void(const LogEntry&)> go;
  // Has this rank submitted the collective, and does it still wait?
  std::function<bool(uint64_t uid)> is_pending;
};

class Control {
 public:
  // `sockets[r]` leads to rank r: all but the own on rank 0, only that of rank
  // 0 elsewhere.
  Control(const GroupMembers* members, std::vector<Socket> sockets,
          Failure* failure, ControlEvents events);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  Status Start();

  // All ranks of this host have the collective.
  void HostReady(uint64_t uid, uint64_t digest, bool alike);
  // A collective waits for others too long. Rank 0 asks all ranks for it and
  // warns, or, if fatal, ends the world naming those that do not have it.
  void Stalled(uint64_t uid, const std::string& title, bool fatal);
  // Ends the world everywhere.
  void Abort(const std::string& text);
  // This rank leaves after its part of the first `executed` collectives.
  void Leave(uint64_t executed);

  uint64_t messages_sent() const {
    return messages_sent_.load(std::memory_order_relaxed);
  }
  // In a forked child: only closes descriptors.
  void CloseAll();

 private:
  struct Message;
  struct Peer {
    Socket socket;
    std::mutex send_mutex;
    std::string received;  // not yet a whole message
    bool left = false;
    bool open = false;
  };

  bool is_hub() const { return members_->rank == 0; }
  std::string NameOf(int rank) const;
  void Run();
  void Wake();
  bool ReceiveFrom(int rank);
  void PeerClosed(int rank);
  void Handle(int from, const Message& message);
  void HandleReady(int host, const Message& message);
  void HandleStall(const Message& message);
  void ReportStalls();
  void Send(int rank, const Message& message);
  // Rank 0: to all but `except`.
  void Spread(const Message& message, int except);
  void ToHub(const Message& message);

  const GroupMembers* const members_;
  Failure* const failure_;
  const ControlEvents events_;
  Hub hub_;
  std::mutex order_mutex_;  // rank 0: keeps all leaders' logs in one order
  std::vector<std::unique_ptr<Peer>> peers_;
  int wake_fd_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  std::atomic<uint64_t> messages_sent_{0};
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_CONTROL_H_
