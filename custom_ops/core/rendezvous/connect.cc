#include "custom_ops/core/rendezvous/connect.h"

#include <poll.h>

#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/thread.h"

namespace tfring {
namespace {

// One address that does not answer must not use up the time of the others.
constexpr double kTrySeconds = 3.0;
// A stranger that says nothing is dropped after this.
constexpr double kProofSeconds = 5.0;
// How long accepting waits before it looks at who has come.
constexpr double kLookSeconds = 0.02;
// Between two rounds of all addresses of a peer.
constexpr double kRetrySeconds = 0.02;

Hello HelloOf(const ConnectOptions& options, uint32_t purpose,
              uint32_t channel) {
  Hello hello;
  hello.purpose = purpose;
  hello.channel = channel;
  hello.rank = options.rank;
  hello.session = options.session;
  return hello;
}

Status TryAddress(const ConnectOptions& options, const Expected& peer,
                  const std::string& address, Socket* out) {
  const Deadline deadline =
      Deadline::Earlier(options.deadline, Deadline::After(kTrySeconds));
  Socket socket;
  TFR_RETURN_IF_ERROR(Socket::Connect(address, deadline, &socket));
  Hello theirs;
  TFR_RETURN_IF_ERROR(ClientHandshake(
      socket, options.secret, HelloOf(options, peer.purpose, peer.channel),
      &theirs, options.deadline));
  if (theirs.rank != peer.rank || theirs.session != options.session) {
    return Unavailable(
        StrCat(address, " is rank ", theirs.rank, ", not ", peer.rank));
  }
  *out = std::move(socket);
  return Status::Ok();
}

// Takes connections on threads of their own, so that nobody waits for a slow
// one.
class Acceptor {
 public:
  Acceptor(const ConnectOptions& options, std::set<Expected> expected)
      : options_(options), expected_(std::move(expected)) {}
  ~Acceptor() {
    {
      // Strangers that have not proved themselves by now need not be heard.
      std::lock_guard<std::mutex> lock(mutex_);
      for (Socket& socket : unproven_) socket.Shutdown();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Take(Socket socket) {
    Socket* unproven = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      unproven = &unproven_.emplace_back(std::move(socket));
    }
    threads_.push_back(
        StartThread("tfring-accept", [this, unproven] { Prove(unproven); }));
  }
  bool complete() {
    std::lock_guard<std::mutex> lock(mutex_);
    return expected_.empty();
  }
  std::set<int> missing() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::set<int> ranks;
    for (const Expected& who : expected_)
      ranks.insert(static_cast<int>(who.rank));
    return ranks;
  }
  std::vector<Accepted> TakeAll() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::move(accepted_);
  }

 private:
  void Prove(Socket* socket) {
    Hello theirs;
    const Deadline deadline =
        Deadline::Earlier(options_.deadline, Deadline::After(kProofSeconds));
    const Status proven = ServerHandshake(
        *socket, options_.secret, HelloOf(options_, 0, 0), &theirs, deadline);
    // A stranger is no reason to fail: whoever is missing will be named.
    if (!proven.ok() || theirs.session != options_.session) return;
    const Expected who = {theirs.purpose, theirs.rank, theirs.channel};
    std::lock_guard<std::mutex> lock(mutex_);
    if (expected_.erase(who) == 0) return;
    accepted_.push_back({who, std::move(*socket)});
  }

  const ConnectOptions& options_;
  std::mutex mutex_;
  std::set<Expected> expected_;     // guarded by mutex_
  std::vector<Accepted> accepted_;  // guarded by mutex_
  std::list<Socket> unproven_;      // guarded by mutex_; places stay
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<std::string> AddressesOf(const std::vector<std::string>& hosts,
                                     int port) {
  std::vector<std::string> addresses;
  for (const std::string& host : hosts) {
    addresses.push_back(JoinHostPort(host, port));
  }
  return addresses;
}

Status ConnectToRank(const ConnectOptions& options, const Expected& peer,
                     const std::vector<std::string>& addresses, Socket* out) {
  Status last = Unavailable("it offers no address");
  do {
    for (const std::string& address : addresses) {
      last = TryAddress(options, peer, address, out);
      if (last.ok()) return last;
      // Another secret will not become the right one.
      if (last.code() == TFR_FAILED_PRECONDITION) return last;
    }
    // A peer that turns connections away at once must not keep this loop busy.
    const Deadline pause =
        Deadline::Earlier(options.deadline, Deadline::After(kRetrySeconds));
    poll(nullptr, 0, pause.PollMs());
  } while (!addresses.empty() && !options.over());
  return Annotate(last, StrCat("rank ", options.rank,
                               " cannot connect to rank ", peer.rank));
}

Status ConnectLanes(const ConnectOptions& options, uint32_t leader,
                    const std::vector<std::string>& addresses,
                    std::vector<Socket>* out) {
  for (size_t lane = 0; lane < out->size(); ++lane) {
    TFR_RETURN_IF_ERROR(ConnectToRank(
        options, {kPurposeData, leader, static_cast<uint32_t>(lane)}, addresses,
        &(*out)[lane]));
  }
  return Status::Ok();
}

void ExpectLanes(uint32_t rank, size_t lanes, std::set<Expected>* expected) {
  for (size_t lane = 0; lane < lanes; ++lane) {
    expected->insert({kPurposeData, rank, static_cast<uint32_t>(lane)});
  }
}

Status AcceptRanks(const ConnectOptions& options, Listener* listener,
                   std::set<Expected> expected, std::vector<Accepted>* out) {
  Acceptor acceptor(options, std::move(expected));
  while (!acceptor.complete()) {
    if (options.over()) {
      return DeadlineExceeded(StrCat("rank ", options.rank,
                                     " has not heard from ",
                                     RankList(acceptor.missing())));
    }
    Socket socket;
    const Status accepted = listener->Accept(
        Deadline::Earlier(options.deadline, Deadline::After(kLookSeconds)),
        &socket);
    if (accepted.ok()) {
      acceptor.Take(std::move(socket));
    } else if (accepted.code() != TFR_DEADLINE_EXCEEDED) {
      return accepted;
    }
  }
  *out = acceptor.TakeAll();
  return Status::Ok();
}

}  // namespace tfring
