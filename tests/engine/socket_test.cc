#include "custom_ops/core/transport/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace tfring {
namespace {

constexpr double kLong = 20.0;

// Both ends of a TCP connection over loopback.
struct Pair {
  Listener listener;
  Socket client;
  Socket server;

  Status Open() {
    TFR_RETURN_IF_ERROR(Listener::Open("127.0.0.1", 0, &listener));
    TFR_RETURN_IF_ERROR(
        Socket::Connect(JoinHostPort("127.0.0.1", listener.port()),
                        Deadline::After(kLong), &client));
    return listener.Accept(Deadline::After(kLong), &server);
  }
};

// A port on which nobody listens, and that no other process gets.
class SilentPort {
 public:
  SilentPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int one = 1;  // a listener may share it
    setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* address = reinterpret_cast<sockaddr*>(&address_);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(bind(socket_.fd(), address, size), 0);
    EXPECT_EQ(getsockname(socket_.fd(), address, &size), 0);
  }
  int number() const { return ntohs(address_.sin_port); }

 private:
  Socket socket_;
  sockaddr_in address_ = {};
};

int OptionOf(int fd, int level, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  getsockopt(fd, level, option, &value, &size);
  return value;
}

TEST(both_ends_are_non_blocking_closed_on_exec_and_without_delay) {
  Pair pair;
  ASSERT_OK(pair.Open());
  for (const Socket* end : {&pair.client, &pair.server}) {
    CASE(end == &pair.client ? "client" : "server");
    EXPECT_NE(fcntl(end->fd(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(end->fd(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(OptionOf(end->fd(), IPPROTO_TCP, TCP_NODELAY), 1);
  }
  EXPECT_NE(fcntl(pair.listener.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(data_larger_than_the_socket_buffers_arrives) {
  Pair pair;
  ASSERT_OK(pair.Open());
  std::string data(20 << 20, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i % 251);
  std::thread sender([&] {
    EXPECT_OK(
        pair.client.SendAll(data.data(), data.size(), Deadline::After(kLong)));
  });
  std::string received(data.size(), '\0');
  EXPECT_OK(pair.server.RecvAll(received.data(), received.size(),
                                Deadline::After(kLong)));
  sender.join();
  EXPECT_TRUE(received == data);
}

TEST(connect_waits_for_a_listener_that_starts_later) {
  const SilentPort silent;
  const int port = silent.number();
  Status connected;
  Socket client;
  std::thread dialler([&] {
    connected = Socket::Connect(JoinHostPort("127.0.0.1", port),
                                Deadline::After(kLong), &client);
  });
  // Long enough for at least one refusal on any machine that keeps up; the
  // test holds either way.
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  Listener listener;
  EXPECT_OK(Listener::Open("127.0.0.1", port, &listener));
  Socket server;
  EXPECT_OK(listener.Accept(Deadline::After(kLong), &server));
  dialler.join();
  EXPECT_OK(connected);
}

TEST(connect_to_nobody_names_the_address_and_the_reason) {
  const SilentPort silent;
  const std::string address = JoinHostPort("127.0.0.1", silent.number());
  Socket socket;
  const Status status = Socket::Connect(address, Deadline::After(0.2), &socket);
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
  EXPECT_CONTAINS(status.message(), address);
  EXPECT_CONTAINS(status.message(), "refused");
  EXPECT_FALSE(socket.valid());
}

TEST(an_address_that_cannot_be_read_is_named) {
  for (const char* address :
       {"", ":", "host", "host:", ":80", "host:0", "host:65536", "host:8x",
        "::1:80", "[]:80", "host:123456"}) {
    CASE("address \"", address, "\"");
    Socket socket;
    const Status status =
        Socket::Connect(address, Deadline::After(0.1), &socket);
    EXPECT_EQ(status.code(), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(status.message(), std::string("\"") + address + "\"");
  }
}

TEST(receiving_times_out_and_names_the_peer) {
  Pair pair;
  ASSERT_OK(pair.Open());
  char byte;
  const Status status = pair.client.RecvAll(&byte, 1, Deadline::After(0.05));
  EXPECT_EQ(status.code(), TFR_DEADLINE_EXCEEDED);
  EXPECT_CONTAINS(status.message(),
                  JoinHostPort("127.0.0.1", pair.listener.port()));
}

TEST(sending_to_a_peer_that_does_not_read_times_out) {
  Pair pair;
  ASSERT_OK(pair.Open());
  const std::string data(64 << 20, 'x');
  const Status status =
      pair.client.SendAll(data.data(), data.size(), Deadline::After(0.2));
  EXPECT_EQ(status.code(), TFR_DEADLINE_EXCEEDED);
}

TEST(data_that_is_there_is_received_after_the_deadline) {
  Pair pair;
  ASSERT_OK(pair.Open());
  ASSERT_OK(pair.server.SendAll("x", 1, Deadline::After(kLong)));
  char byte = 0;
  ASSERT_OK(pair.client.RecvAll(&byte, 1, Deadline::After(kLong)));
  ASSERT_OK(pair.server.SendAll("", 0, Deadline::After(0)));
  ASSERT_OK(pair.client.RecvAll(&byte, 0, Deadline::After(0)));
  EXPECT_EQ(byte, 'x');
}

TEST(a_peer_that_closes_is_told_apart_from_a_slow_one) {
  Pair pair;
  ASSERT_OK(pair.Open());
  pair.server.Close();
  char byte;
  const Status status = pair.client.RecvAll(&byte, 1, Deadline::After(kLong));
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
  EXPECT_CONTAINS(status.message(), "closed by 127.0.0.1:");
}

TEST(sending_to_a_closed_peer_fails_without_a_signal) {
  Pair pair;
  ASSERT_OK(pair.Open());
  pair.server.Close();
  const std::string data(1 << 20, 'x');
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status =
        pair.client.SendAll(data.data(), data.size(), Deadline::After(kLong));
  }
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
}

TEST(shutdown_wakes_a_thread_that_receives) {
  Pair pair;
  ASSERT_OK(pair.Open());
  Status status;
  std::thread receiver([&] {
    char byte;
    status = pair.client.RecvAll(&byte, 1, Deadline::Never());
  });
  pair.client.Shutdown();
  receiver.join();
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
}

TEST(accept_times_out_when_nobody_comes) {
  Listener listener;
  ASSERT_OK(Listener::Open("127.0.0.1", 0, &listener));
  Socket socket;
  for (const double seconds : {0.0, 0.05}) {
    CASE("seconds ", seconds);
    EXPECT_EQ(listener.Accept(Deadline::After(seconds), &socket).code(),
              TFR_DEADLINE_EXCEEDED);
  }
}

TEST(a_listener_on_all_interfaces_takes_every_loopback_address) {
  Listener listener;
  ASSERT_OK(Listener::Open("", 0, &listener));
  std::vector<std::string> hosts = {"127.0.0.1"};
  Listener v6;
  if (Listener::Open("::1", 0, &v6).ok()) hosts.push_back("::1");
  for (const std::string& host : hosts) {
    CASE(host);
    Socket client;
    Socket server;
    ASSERT_OK(Socket::Connect(JoinHostPort(host, listener.port()),
                              Deadline::After(kLong), &client));
    ASSERT_OK(listener.Accept(Deadline::After(kLong), &server));
    EXPECT_EQ(client.LocalHost(), host);
    EXPECT_EQ(server.LocalHost(), host);
    EXPECT_EQ(client.PeerName(), JoinHostPort(host, listener.port()));
  }
}

TEST(a_port_in_use_is_an_error_that_names_it) {
  Listener first;
  ASSERT_OK(Listener::Open("127.0.0.1", 0, &first));
  Listener second;
  const Status status = Listener::Open("127.0.0.1", first.port(), &second);
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
  EXPECT_CONTAINS(status.message(), std::to_string(first.port()));
}

TEST(a_port_out_of_range_is_refused) {
  for (const int port : {-1, 65536}) {
    CASE("port ", port);
    Listener listener;
    EXPECT_EQ(Listener::Open("", port, &listener).code(), TFR_INVALID_ARGUMENT);
  }
}

TEST(keepalive_sets_what_it_says) {
  Pair pair;
  ASSERT_OK(pair.Open());
  ASSERT_OK(pair.client.SetKeepalive(20, 5, 4));
  const int fd = pair.client.fd();
  EXPECT_EQ(OptionOf(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(OptionOf(fd, IPPROTO_TCP, TCP_KEEPIDLE), 20);
  EXPECT_EQ(OptionOf(fd, IPPROTO_TCP, TCP_KEEPINTVL), 5);
  EXPECT_EQ(OptionOf(fd, IPPROTO_TCP, TCP_KEEPCNT), 4);
  EXPECT_EQ(OptionOf(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 40000);
}

TEST(a_moved_socket_has_no_descriptor) {
  Pair pair;
  ASSERT_OK(pair.Open());
  Socket other(std::move(pair.client));
  EXPECT_TRUE(other.valid());
  EXPECT_FALSE(pair.client.valid());  // NOLINT: that is what is tested
  pair.server = std::move(other);
  EXPECT_TRUE(pair.server.valid());
}

TEST(interface_addresses) {
  std::vector<std::string> addresses;
  ASSERT_OK(InterfaceAddresses("", &addresses));
  for (const std::string& address : addresses) {
    EXPECT_NE(address, "127.0.0.1");
  }
  ASSERT_OK(InterfaceAddresses(" lo ,", &addresses));
  ASSERT_FALSE(addresses.empty());
  EXPECT_EQ(addresses[0], "127.0.0.1");
}

TEST(an_unknown_interface_is_named_with_those_that_exist) {
  std::vector<std::string> addresses;
  const Status status = InterfaceAddresses("lo,nosuchnic0", &addresses);
  EXPECT_EQ(status.code(), TFR_INVALID_ARGUMENT);
  EXPECT_CONTAINS(status.message(), "nosuchnic0");
  EXPECT_CONTAINS(status.message(), "lo (127.0.0.1)");
}

TEST(deadlines) {
  EXPECT_TRUE(Deadline::After(0).expired());
  EXPECT_TRUE(Deadline::After(-5).expired());
  EXPECT_EQ(Deadline::After(-5).PollMs(), 0);
  EXPECT_FALSE(Deadline::After(60).expired());
  EXPECT_LE(Deadline::After(60).PollMs(), 60000);
  EXPECT_GT(Deadline::After(60).PollMs(), 50000);
  EXPECT_TRUE(Deadline::After(1e300).never());
  EXPECT_EQ(Deadline::Never().PollMs(), -1);
  EXPECT_FALSE(Deadline::Never().expired());
  EXPECT_EQ(Deadline::After(1e8).PollMs(), 2147483647);
}

TEST(export_cuts_a_long_message) {
  tfr_error error;
  EXPECT_EQ(Export(Unavailable(std::string(10000, 'x')), &error),
            TFR_UNAVAILABLE);
  const std::string text = error.text;
  EXPECT_EQ(text.size(), size_t{TFR_ERROR_TEXT - 1});
  EXPECT_EQ(text.substr(text.size() - 4), "x...");
  EXPECT_EQ(Export(Status::Ok(), &error), TFR_OK);
  EXPECT_EQ(error.code, TFR_OK);
  EXPECT_EQ(std::string(error.text), "");
  EXPECT_EQ(Export(NotFound("x"), nullptr), TFR_NOT_FOUND);
}

}  // namespace
}  // namespace tfring
