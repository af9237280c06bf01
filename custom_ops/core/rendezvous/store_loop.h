// The thread of the store server: its connections and what it does with them.
// store_server.cc moves bytes, store_requests.cc answers requests.
#ifndef TFRING_CORE_RENDEZVOUS_STORE_LOOP_H_
#define TFRING_CORE_RENDEZVOUS_STORE_LOOP_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/rendezvous/store_protocol.h"
#include "custom_ops/core/rendezvous/store_server.h"
#include "custom_ops/core/rendezvous/store_table.h"
#include "custom_ops/core/transport/handshake.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

// Where the next message of a connection belongs.
enum class Stage { kHandshake, kHeader, kKey, kValue, kWaiting };

struct StoreConnection {
  StoreConnection(uint64_t id_in, Socket socket_in, const std::string& secret,
                  const Hello& hello)
      : id(id_in),
        socket(std::move(socket_in)),
        handshake(new Handshake(Handshake::Role::kServer, secret, hello)) {}

  const uint64_t id;
  Socket socket;
  std::unique_ptr<Handshake> handshake;  // freed when it is done
  Stage stage = Stage::kHandshake;

  std::string in;     // what has come of the message
  uint64_t want = 0;  // its size
  std::deque<StoreTable::Value> out;
  size_t out_offset = 0;  // into the first
  uint32_t interest = 0;
  int64_t timer_ns = 0;  // 0 = none
  bool close_when_sent = false;
  bool dead = false;

  StoreRequest request;
  std::string key;

  bool reading() const {
    return !dead && !close_when_sent && out.empty() && stage != Stage::kWaiting;
  }
};

// Everything but construction and destruction runs on the thread.
class StoreServer::Loop {
 public:
  explicit Loop(const StoreServerOptions& options) : options_(options) {}
  ~Loop();

  Status Start();
  int port() const { return listener_.port(); }

 private:
  static constexpr uint64_t kFirstConnectionId = 2;
  using Connection = StoreConnection;
  using Connections = std::map<uint64_t, std::unique_ptr<Connection>>;

  void Run();
  void OnEvent(uint64_t id, uint32_t events);
  void OnConnectionEvent(Connection& c, uint32_t events);
  void OnTimer(uint64_t id);
  void RunTimers();
  void Reap();

  void AcceptSome();
  void AddConnection(Socket socket);
  void OnAcceptFailure();
  void PauseAccepting(bool pause);

  void Receive(Connection& c);
  void Advance(Connection& c);
  void AdvanceHandshake(Connection& c);
  void StartRequest(Connection& c);
  void ExpectHeader(Connection& c);

  void Execute(Connection& c);
  void ExecuteSet(Connection& c);
  void ExecuteGet(Connection& c);
  void ExecuteGather(Connection& c);
  void AnswerWaiting(uint64_t id);
  void AnswerGather(Connection& c);
  void AnswerMissing(Connection& c, const std::vector<uint32_t>& missing);

  void Wait(Connection& c);
  void Reply(Connection& c, StoreReply reply, StoreTable::Value payload);
  void ReplyError(Connection& c, const Status& status);
  void Send(Connection& c);
  void Kill(Connection& c);
  void UpdateInterest(Connection& c);
  void SetTimer(Connection& c, Deadline deadline);

  const StoreServerOptions options_;
  Listener listener_;
  int epoll_ = -1;
  int wake_ = -1;
  std::thread thread_;

  StoreTable table_;
  Connections connections_;
  std::set<uint64_t> unproven_;  // the oldest has the lowest number
  std::set<std::pair<int64_t, uint64_t>> timers_;
  std::vector<uint64_t> dead_;
  std::vector<char> buffer_;
  uint64_t next_id_ = kFirstConnectionId;
  bool stop_ = false;
};

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_STORE_LOOP_H_
