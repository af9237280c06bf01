// Both ends of a new connection prove that they know the job's secret.
//
//   1  client -> server   preamble, client nonce
//   2  server -> client   preamble, server nonce
//   3  client -> server   client Hello, HMAC(secret, "client" label, 1, 2, 3)
//   4  server -> client   verdict, server Hello, HMAC(secret, "server" label,
//                         1, 2, client Hello, verdict, server Hello)
//
// Every message has a fixed size. Nothing of a peer but its preamble is read
// before its HMAC has been checked. Fresh nonces on both sides make recorded
// messages worthless, and the labels keep one direction's proof from serving
// in the other. The client proves itself first, so that a stranger who dials
// in gets nothing computed from the secret. The bytes that follow are neither
// encrypted nor authenticated.
#ifndef TFRING_CORE_TRANSPORT_HANDSHAKE_H_
#define TFRING_CORE_TRANSPORT_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

// What one end says about itself, covered by its HMAC. The handshake gives no
// meaning to the fields.
struct Hello {
  uint32_t purpose = 0;
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t channel = 0;
  uint64_t session = 0;
  uint64_t extra = 0;
};

// What the connections of a job are for.
constexpr uint32_t kPurposeStore = 1;
constexpr uint32_t kPurposeControl = 2;
constexpr uint32_t kPurposeData = 3;

// One end of the exchange without any input or output, for use over blocking
// and non-blocking sockets alike:
//   send TakeOutput(); until done(): receive BytesWanted() bytes, Consume().
// After an error what TakeOutput() gives must still be sent (it tells the peer
// why), as far as that is possible without waiting, before closing.
class Handshake {
 public:
  enum class Role { kClient, kServer };

  Handshake(Role role, const std::string& secret, const Hello& mine);

  // Must be called first; fails if the secret is empty or there are no random
  // numbers.
  Status Start();
  // The size of the next message; 0 once done or failed.
  size_t BytesWanted() const;
  // `message` holds BytesWanted() bytes. FAILED_PRECONDITION if the secrets
  // differ, UNAVAILABLE if the peer does not speak this protocol.
  Status Consume(const uint8_t* message);
  std::string TakeOutput();
  bool done() const { return state_ == State::kDone; }
  // Valid once done.
  const Hello& theirs() const { return theirs_; }

 private:
  enum class State { kIdle, kWaitNonce, kWaitProof, kDone, kFailed };

  Status ConsumeNonce(const uint8_t* message);
  Status ConsumeClientProof(const uint8_t* message);
  Status ConsumeServerProof(const uint8_t* message);
  void AppendClientProof();
  Status Fail(Status status);

  const Role role_;
  const std::string secret_;
  const Hello mine_;
  Hello theirs_;
  State state_ = State::kIdle;
  std::string transcript_;  // messages 1 and 2, then both Hellos as they come
  std::string output_;
};

// Runs the exchange over a socket. On an error the caller closes the socket.
Status ClientHandshake(Socket& socket, const std::string& secret,
                       const Hello& mine, Hello* theirs, Deadline deadline);
Status ServerHandshake(Socket& socket, const std::string& secret,
                       const Hello& mine, Hello* theirs, Deadline deadline);

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_HANDSHAKE_H_
