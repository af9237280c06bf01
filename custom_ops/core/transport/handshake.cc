#include "custom_ops/core/transport/handshake.h"

#include <cstring>
#include <vector>

#include "custom_ops/core/common/sha256.h"
#include "custom_ops/core/common/wire.h"

namespace tfring {
namespace {

constexpr char kMagic[] = "TFRING\r\n";  // 8 bytes on the wire
constexpr size_t kMagicBytes = 8;
constexpr uint32_t kVersion = 1;
constexpr size_t kNonceBytes = 32;
constexpr size_t kPreambleBytes = kMagicBytes + sizeof(uint32_t);
constexpr size_t kNonceMessageBytes = kPreambleBytes + kNonceBytes;
constexpr size_t kHelloBytes = 4 * sizeof(uint32_t) + 2 * sizeof(uint64_t);
constexpr size_t kMacBytes = sizeof(Sha256Digest);
constexpr size_t kClientProofBytes = kHelloBytes + kMacBytes;
constexpr size_t kServerProofBytes = 1 + kHelloBytes + kMacBytes;

constexpr char kClientLabel[] = "tfring handshake: client to server";
constexpr char kServerLabel[] = "tfring handshake: server to client";

constexpr char kAccepted = 1;
constexpr char kRefused = 0;

constexpr char kWrongSecret[] =
    "the two ends do not have the same secret; all processes of a job must be "
    "given one TFRING_SECRET";

std::string EncodeHello(const Hello& hello) {
  std::string bytes;
  AppendInt(hello.purpose, &bytes);
  AppendInt(hello.rank, &bytes);
  AppendInt(hello.size, &bytes);
  AppendInt(hello.channel, &bytes);
  AppendInt(hello.session, &bytes);
  AppendInt(hello.extra, &bytes);
  return bytes;
}

Hello DecodeHello(const uint8_t* bytes) {
  Hello hello;
  hello.purpose = ReadInt<uint32_t>(bytes);
  hello.rank = ReadInt<uint32_t>(bytes + 4);
  hello.size = ReadInt<uint32_t>(bytes + 8);
  hello.channel = ReadInt<uint32_t>(bytes + 12);
  hello.session = ReadInt<uint64_t>(bytes + 16);
  hello.extra = ReadInt<uint64_t>(bytes + 24);
  return hello;
}

// The label's terminating zero separates it from the transcript.
Sha256Digest Proof(const std::string& secret, const char* label,
                   const std::string& transcript) {
  std::string text(label, std::strlen(label) + 1);
  text += transcript;
  return HmacSha256(secret, text.data(), text.size());
}

std::string AsText(const Sha256Digest& digest) {
  return std::string(digest.begin(), digest.end());
}

std::string AsText(const uint8_t* bytes, size_t size) {
  return std::string(bytes, bytes + size);
}

// Tells the peer why, without waiting, then returns the reason.
Status SendFarewell(Socket& socket, Handshake* handshake, Status reason) {
  const std::string farewell = handshake->TakeOutput();
  if (farewell.empty()) return reason;
  const Status sent =
      socket.SendAll(farewell.data(), farewell.size(), Deadline::After(0));
  // The reason matters more than a peer that is already gone.
  static_cast<void>(sent);
  return reason;
}

Status RunHandshake(Handshake::Role role, Socket& socket,
                    const std::string& secret, const Hello& mine, Hello* theirs,
                    Deadline deadline) {
  const std::string context =
      StrCat("handshake with ", socket.PeerName(), " failed");
  Handshake handshake(role, secret, mine);
  TFR_RETURN_IF_ERROR(Annotate(handshake.Start(), context));
  for (;;) {
    const std::string output = handshake.TakeOutput();
    TFR_RETURN_IF_ERROR(Annotate(
        socket.SendAll(output.data(), output.size(), deadline), context));
    if (handshake.done()) break;
    std::vector<uint8_t> message(handshake.BytesWanted());
    TFR_RETURN_IF_ERROR(Annotate(
        socket.RecvAll(message.data(), message.size(), deadline), context));
    const Status status = handshake.Consume(message.data());
    if (!status.ok()) {
      return SendFarewell(socket, &handshake, Annotate(status, context));
    }
  }
  *theirs = handshake.theirs();
  return Status::Ok();
}

}  // namespace

Handshake::Handshake(Role role, const std::string& secret, const Hello& mine)
    : role_(role), secret_(secret), mine_(mine) {}

Status Handshake::Start() {
  if (secret_.empty()) {
    return Fail(InvalidArgument("`secret` must not be empty"));
  }
  uint8_t nonce[kNonceBytes];
  const Status status = RandomBytes(nonce, sizeof(nonce));
  if (!status.ok()) return Fail(status);
  output_.assign(kMagic, kMagicBytes);
  AppendInt(kVersion, &output_);
  output_ += AsText(nonce, sizeof(nonce));
  if (role_ == Role::kClient) transcript_ = output_;
  state_ = State::kWaitNonce;
  return Status::Ok();
}

size_t Handshake::BytesWanted() const {
  switch (state_) {
    case State::kWaitNonce:
      return kNonceMessageBytes;
    case State::kWaitProof:
      return role_ == Role::kClient ? kServerProofBytes : kClientProofBytes;
    default:
      return 0;
  }
}

std::string Handshake::TakeOutput() {
  // The server's nonce waits for the client to introduce itself.
  if (role_ == Role::kServer && state_ == State::kWaitNonce) return "";
  return std::exchange(output_, std::string());
}

Status Handshake::Consume(const uint8_t* message) {
  switch (state_) {
    case State::kWaitNonce:
      return ConsumeNonce(message);
    case State::kWaitProof:
      return role_ == Role::kClient ? ConsumeServerProof(message)
                                    : ConsumeClientProof(message);
    default:
      return Internal("a handshake that is over was given a message");
  }
}

Status Handshake::ConsumeNonce(const uint8_t* message) {
  if (std::memcmp(message, kMagic, kMagicBytes) != 0) {
    return Fail(Unavailable("the peer does not speak the tfring protocol"));
  }
  const auto version = ReadInt<uint32_t>(message + kMagicBytes);
  if (version != kVersion) {
    // A server's preamble tells the client, too, which versions met.
    const std::string preamble = role_ == Role::kServer ? output_ : "";
    Status status = Fail(FailedPrecondition(
        StrCat("the peer speaks version ", version,
               " of the tfring protocol and this process version ", kVersion,
               "; all processes of a job must run the same tfring")));
    output_ = preamble;
    return status;
  }
  state_ = State::kWaitProof;
  if (role_ == Role::kServer) {
    transcript_ = AsText(message, kNonceMessageBytes) + output_;
    return Status::Ok();
  }
  transcript_ += AsText(message, kNonceMessageBytes);
  AppendClientProof();
  return Status::Ok();
}

void Handshake::AppendClientProof() {
  const std::string hello = EncodeHello(mine_);
  transcript_ += hello;
  output_ = hello + AsText(Proof(secret_, kClientLabel, transcript_));
}

Status Handshake::ConsumeClientProof(const uint8_t* message) {
  transcript_ += AsText(message, kHelloBytes);
  const Sha256Digest expected = Proof(secret_, kClientLabel, transcript_);
  if (!ConstantTimeEqual(expected.data(), message + kHelloBytes, kMacBytes)) {
    Status status = Fail(FailedPrecondition(kWrongSecret));
    output_.assign(kServerProofBytes, kRefused);
    return status;
  }
  theirs_ = DecodeHello(message);
  const std::string accepted = kAccepted + EncodeHello(mine_);
  transcript_ += accepted;
  output_ = accepted + AsText(Proof(secret_, kServerLabel, transcript_));
  state_ = State::kDone;
  return Status::Ok();
}

Status Handshake::ConsumeServerProof(const uint8_t* message) {
  transcript_ += AsText(message, 1 + kHelloBytes);
  const Sha256Digest expected = Proof(secret_, kServerLabel, transcript_);
  const bool proved =
      ConstantTimeEqual(expected.data(), message + 1 + kHelloBytes, kMacBytes);
  if (!proved || message[0] != kAccepted) {
    return Fail(FailedPrecondition(kWrongSecret));
  }
  theirs_ = DecodeHello(message + 1);
  state_ = State::kDone;
  return Status::Ok();
}

Status Handshake::Fail(Status status) {
  state_ = State::kFailed;
  output_.clear();
  return status;
}

Status ClientHandshake(Socket& socket, const std::string& secret,
                       const Hello& mine, Hello* theirs, Deadline deadline) {
  return RunHandshake(Handshake::Role::kClient, socket, secret, mine, theirs,
                      deadline);
}

Status ServerHandshake(Socket& socket, const std::string& secret,
                       const Hello& mine, Hello* theirs, Deadline deadline) {
  return RunHandshake(Handshake::Role::kServer, socket, secret, mine, theirs,
                      deadline);
}

}  // namespace tfring
