#include "custom_ops/core/transport/handshake.h"

#include <sys/socket.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "check.h"

namespace tfring {
namespace {

constexpr double kLong = 20.0;
constexpr size_t kNonceMessageBytes = 44;
constexpr size_t kHelloBytes = 32;

Hello HelloOf(uint32_t rank) {
  Hello hello;
  hello.purpose = kPurposeData;
  hello.rank = rank;
  hello.size = 7;
  hello.channel = 3;
  hello.session = 0x1122334455667788;
  hello.extra = ~uint64_t{0} - rank;
  return hello;
}

bool Same(const Hello& a, const Hello& b) {
  return a.purpose == b.purpose && a.rank == b.rank && a.size == b.size &&
         a.channel == b.channel && a.session == b.session && a.extra == b.extra;
}

std::pair<Socket, Socket> SocketPair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  return {Socket(fds[0]), Socket(fds[1])};
}

Status Feed(Handshake* to, const std::string& message) {
  EXPECT_EQ(message.size(), to->BytesWanted());
  if (message.size() != to->BytesWanted()) return Internal("wrong size");
  return to->Consume(reinterpret_cast<const uint8_t*>(message.data()));
}

// Two ends joined without a network. `change` may alter message 1 to 4.
struct Exchange {
  Exchange(const std::string& client_secret, const std::string& server_secret)
      : client(Handshake::Role::kClient, client_secret, HelloOf(1)),
        server(Handshake::Role::kServer, server_secret, HelloOf(2)) {}

  void Run(const std::function<void(int, std::string*)>& change) {
    EXPECT_OK(client.Start());
    EXPECT_OK(server.Start());
    for (int i = 0; i < 4; ++i) {
      const bool to_server = i % 2 == 0;
      std::string message =
          to_server ? client.TakeOutput() : server.TakeOutput();
      // An end that failed has nothing more to hear.
      if (message.empty() || (to_server && !server_status.ok())) return;
      sent[i] = message;
      change(i + 1, &message);
      Status& status = to_server ? server_status : client_status;
      status = Feed(to_server ? &server : &client, message);
    }
  }

  Handshake client;
  Handshake server;
  Status client_status;
  Status server_status;
  std::string sent[4];
};

void Unchanged(int, std::string*) {}

TEST(the_right_secret_makes_both_ends_known) {
  auto [a, b] = SocketPair();
  Hello seen_by_client;
  Hello seen_by_server;
  Status served;
  std::thread server([&, &end = b] {
    served = ServerHandshake(end, "secret", HelloOf(2), &seen_by_server,
                             Deadline::After(kLong));
  });
  EXPECT_OK(ClientHandshake(a, "secret", HelloOf(1), &seen_by_client,
                            Deadline::After(kLong)));
  server.join();
  EXPECT_OK(served);
  EXPECT_TRUE(Same(seen_by_client, HelloOf(2)));
  EXPECT_TRUE(Same(seen_by_server, HelloOf(1)));
}

TEST(a_wrong_secret_is_said_plainly_at_both_ends) {
  auto [a, b] = SocketPair();
  Hello theirs;
  Status served;
  std::thread server([&, &end = b] {
    Hello ignored;
    served = ServerHandshake(end, "secret", HelloOf(2), &ignored,
                             Deadline::After(kLong));
  });
  const Status dialled =
      ClientHandshake(a, "other", HelloOf(1), &theirs, Deadline::After(kLong));
  server.join();
  for (const Status& status : {served, dialled}) {
    CASE(&status == &served ? "server" : "client");
    EXPECT_EQ(status.code(), TFR_FAILED_PRECONDITION);
    EXPECT_CONTAINS(status.message(), "do not have the same secret");
  }
  EXPECT_TRUE(Same(theirs, Hello()));
}

TEST(a_stranger_gets_nothing_computed_from_the_secret) {
  Exchange exchange("other", "secret");
  exchange.Run(Unchanged);
  EXPECT_TRUE(exchange.sent[3] == std::string(exchange.sent[3].size(), '\0'));
}

TEST(an_empty_secret_is_refused) {
  Handshake handshake(Handshake::Role::kClient, "", Hello());
  EXPECT_EQ(handshake.Start().code(), TFR_INVALID_ARGUMENT);
  EXPECT_EQ(handshake.BytesWanted(), size_t{0});
}

TEST(any_changed_bit_of_any_message_ends_the_handshake) {
  Exchange whole("secret", "secret");
  whole.Run(Unchanged);
  ASSERT_TRUE(whole.client.done() && whole.server.done());
  for (int message = 1; message <= 4; ++message) {
    for (size_t byte = 0; byte < whole.sent[message - 1].size(); ++byte) {
      CASE("message ", message, ", byte ", byte);
      Exchange exchange("secret", "secret");
      exchange.Run([&](int number, std::string* text) {
        if (number == message) {
          (*text)[byte] = static_cast<char>((*text)[byte] ^ 0x40);
        }
      });
      const bool to_server = message % 2 == 1;
      // A changed nonce is noticed with the next proof.
      EXPECT_FALSE(exchange.client.done());
      if (to_server || message == 2) EXPECT_FALSE(exchange.server.done());
    }
  }
}

TEST(garbage_is_not_taken_for_a_peer) {
  Handshake server(Handshake::Role::kServer, "secret", Hello());
  ASSERT_OK(server.Start());
  const Status status = Feed(&server, std::string(kNonceMessageBytes, 'G'));
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
  EXPECT_CONTAINS(status.message(), "does not speak the tfring protocol");
  EXPECT_EQ(server.TakeOutput(), "");
}

TEST(another_version_is_named_at_both_ends) {
  Exchange exchange("secret", "secret");
  ASSERT_OK(exchange.client.Start());
  ASSERT_OK(exchange.server.Start());
  std::string message = exchange.client.TakeOutput();
  message[8] = 9;
  const Status served = Feed(&exchange.server, message);
  EXPECT_EQ(served.code(), TFR_FAILED_PRECONDITION);
  EXPECT_CONTAINS(served.message(), "version 9");
  EXPECT_EQ(exchange.server.TakeOutput().size(), kNonceMessageBytes);
}

TEST(a_peer_that_stops_in_the_middle_fails_the_handshake) {
  for (const size_t bytes : {0, 1, 12, 43, 44, 80}) {
    CASE(bytes, " bytes");
    Handshake client(Handshake::Role::kClient, "secret", HelloOf(1));
    ASSERT_OK(client.Start());
    std::string text = client.TakeOutput();
    text.append(100, 'x');
    auto [a, b] = SocketPair();
    ASSERT_OK(a.SendAll(text.data(), bytes, Deadline::After(kLong)));
    shutdown(a.fd(), SHUT_WR);
    Hello theirs;
    const Status status = ServerHandshake(b, "secret", HelloOf(2), &theirs,
                                          Deadline::After(kLong));
    EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
    EXPECT_CONTAINS(status.message(), "closed by");
  }
}

TEST(a_silent_peer_fails_the_handshake_in_time) {
  auto [a, b] = SocketPair();
  Hello theirs;
  EXPECT_EQ(
      ServerHandshake(a, "secret", HelloOf(2), &theirs, Deadline::After(0.05))
          .code(),
      TFR_DEADLINE_EXCEEDED);
  EXPECT_EQ(
      ClientHandshake(b, "secret", HelloOf(1), &theirs, Deadline::After(0.05))
          .code(),
      TFR_DEADLINE_EXCEEDED);
}

TEST(a_recorded_client_does_not_pass_again) {
  Exchange recorded("secret", "secret");
  recorded.Run(Unchanged);
  ASSERT_TRUE(recorded.server.done());
  Handshake server(Handshake::Role::kServer, "secret", HelloOf(2));
  ASSERT_OK(server.Start());
  EXPECT_OK(Feed(&server, recorded.sent[0]));
  EXPECT_EQ(Feed(&server, recorded.sent[2]).code(), TFR_FAILED_PRECONDITION);
}

TEST(a_recorded_server_does_not_pass_again) {
  Exchange recorded("secret", "secret");
  recorded.Run(Unchanged);
  Handshake client(Handshake::Role::kClient, "secret", HelloOf(1));
  ASSERT_OK(client.Start());
  EXPECT_OK(Feed(&client, recorded.sent[1]));
  EXPECT_EQ(Feed(&client, recorded.sent[3]).code(), TFR_FAILED_PRECONDITION);
}

TEST(a_client_whose_own_messages_come_back_is_not_fooled) {
  Handshake client(Handshake::Role::kClient, "secret", HelloOf(1));
  ASSERT_OK(client.Start());
  EXPECT_OK(Feed(&client, client.TakeOutput()));
  const std::string proof = client.TakeOutput();
  EXPECT_EQ(proof.size() + 1, client.BytesWanted());
  const std::string hello = proof.substr(0, kHelloBytes);
  const std::string mac = proof.substr(kHelloBytes);
  EXPECT_EQ(Feed(&client, '\x01' + hello + mac).code(),
            TFR_FAILED_PRECONDITION);
}

// The stranger opens two connections to one server and tries to make the
// second prove the first.
TEST(a_server_does_not_prove_a_stranger_to_itself) {
  Handshake first(Handshake::Role::kServer, "secret", HelloOf(2));
  Handshake second(Handshake::Role::kServer, "secret", HelloOf(2));
  ASSERT_OK(first.Start());
  ASSERT_OK(second.Start());
  const std::string opening = [] {
    Handshake client(Handshake::Role::kClient, "unknown", HelloOf(1));
    EXPECT_OK(client.Start());
    return client.TakeOutput();
  }();
  EXPECT_OK(Feed(&first, opening));
  EXPECT_OK(Feed(&second, first.TakeOutput()));
  EXPECT_EQ(second.TakeOutput().size(), kNonceMessageBytes);
  EXPECT_EQ(Feed(&second, std::string(second.BytesWanted(), '\0')).code(),
            TFR_FAILED_PRECONDITION);
}

}  // namespace
}  // namespace tfring
