// The server of the store among strangers, slow readers and dying clients.
#include "custom_ops/core/rendezvous/store_server.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/rendezvous/store_client.h"
#include "custom_ops/core/rendezvous/store_protocol.h"
#include "custom_ops/core/tfring.h"
#include "custom_ops/core/transport/handshake.h"
#include "store.h"

namespace tfring {
namespace {

TEST(a_wrong_secret_is_said_plainly) {
  const auto server = Serve();
  std::unique_ptr<StoreClient> client;
  const Status status =
      StoreClient::Connect(AddressOf(*server), "other", kLong, &client);
  EXPECT_EQ(status.code(), TFR_FAILED_PRECONDITION);
  EXPECT_CONTAINS(status.message(), "do not have the same secret");
  EXPECT_CONTAINS(status.message(), AddressOf(*server));
  EXPECT_TRUE(client == nullptr);
  EXPECT_OK(Dial(*server)->Set("key", "x"));
}

TEST(a_silent_stranger_is_dropped_and_delays_nobody) {
  const auto server = Serve(2.0);
  std::vector<Socket> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(DialRaw(*server));
  SendText(&silent[0], "TFRI");
  EXPECT_OK(Dial(*server)->Set("key", "x"));
  for (size_t i = 0; i < silent.size(); ++i) {
    CASE("stranger ", i);
    EXPECT_TRUE(IsClosed(&silent[i]));
  }
}

TEST(garbage_from_many_strangers_harms_nobody) {
  const auto server = Serve();
  std::atomic<bool> stop{false};
  std::vector<std::thread> strangers;
  for (int i = 0; i < 4; ++i) {
    strangers.emplace_back([&, i] {
      unsigned seed = static_cast<unsigned>(i) + 1;
      while (!stop) {
        Socket socket = DialRaw(*server);
        std::string text(1 + seed % 300, '\0');
        for (char& c : text) {
          seed = seed * 1664525u + 1013904223u;
          c = static_cast<char>(seed >> 24);
        }
        // May fail half way, once the server has closed the connection.
        const Status sent =
            socket.SendAll(text.data(), text.size(), Deadline::After(kLong));
        static_cast<void>(sent);
      }
    });
  }
  const auto client = Dial(*server);
  for (int i = 0; i < 300; ++i) {
    const std::string key = StrCat("key/", i);
    std::string value;
    EXPECT_OK(client->Set(key, key));
    EXPECT_OK(client->Get(key, 0, &value));
    EXPECT_EQ(value, key);
  }
  stop = true;
  for (std::thread& stranger : strangers) stranger.join();
}

TEST(a_proven_peer_of_another_kind_is_not_served) {
  const auto server = Serve();
  Socket socket = DialRaw(*server);
  Hello mine;
  mine.purpose = kPurposeData;
  Hello theirs;
  ASSERT_OK(
      ClientHandshake(socket, kSecret, mine, &theirs, Deadline::After(kLong)));
  EXPECT_TRUE(IsClosed(&socket));
}

TEST(a_client_that_dies_in_the_middle_of_a_frame_harms_nobody) {
  const auto server = Serve();
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.key_bytes = 4;
  request.value_bytes = 1000;
  const std::string frame = request.Encode() + "half" + std::string(1000, 'v');
  for (const size_t bytes : {1u, 31u, 32u, 34u, 36u, 500u, 1035u}) {
    CASE(bytes, " bytes of the frame");
    Socket socket = DialProven(*server);
    SendText(&socket, frame.substr(0, bytes));
    socket.Close();
  }
  const auto client = Dial(*server);
  std::string value;
  EXPECT_EQ(client->Get("half", kShort, &value).code(), TFR_DEADLINE_EXCEEDED);
}

TEST(a_frame_that_comes_byte_by_byte_is_understood) {
  const auto server = Serve();
  Socket socket = DialProven(*server);
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.key_bytes = 4;
  request.value_bytes = 5;
  for (const char c : request.Encode() + "slowvalue") {
    SendText(&socket, std::string(1, c));
  }
  char reply[StoreReply::kBytes];
  ASSERT_OK(socket.RecvAll(reply, sizeof(reply), Deadline::After(kLong)));
  std::string value;
  ASSERT_OK(Dial(*server)->Get("slow", 0, &value));
  EXPECT_EQ(value, "value");
}

TEST(requests_sent_ahead_are_answered_in_order) {
  const auto server = Serve();
  Socket socket = DialProven(*server);
  StoreRequest get;
  get.op = StoreOp::kGet;
  get.key_bytes = 3;
  get.timeout_ns = kStoreWaitForever;
  StoreRequest set;
  set.op = StoreOp::kSetOnce;
  set.key_bytes = 3;
  set.value_bytes = 1;
  SendText(&socket, get.Encode() + "one" + set.Encode() + "twov");
  ASSERT_OK(Dial(*server)->Set("one", "1"));
  char first[StoreReply::kBytes + 1];
  ASSERT_OK(socket.RecvAll(first, sizeof(first), Deadline::After(kLong)));
  EXPECT_EQ(first[StoreReply::kBytes], '1');
  char second[StoreReply::kBytes];
  ASSERT_OK(socket.RecvAll(second, sizeof(second), Deadline::After(kLong)));
  EXPECT_EQ(second[1], 1);
}

TEST(a_frame_that_claims_too_much_is_refused) {
  struct Claim {
    const char* name;
    uint8_t op;
    uint32_t key_bytes;
    uint64_t value_bytes;
    uint32_t count;
  };
  const uint8_t set = static_cast<uint8_t>(StoreOp::kSet);
  const uint8_t get = static_cast<uint8_t>(StoreOp::kGet);
  const uint8_t gather = static_cast<uint8_t>(StoreOp::kGather);
  const std::vector<Claim> claims = {
      {"value", set, 1, kStoreMaxValueBytes + 1, 0},
      {"huge value", set, 1, ~uint64_t{0}, 0},
      {"key", set, kStoreMaxKeyBytes + 1, 1, 0},
      {"no key", get, 0, 0, 0},
      {"value of a get", get, 1, 1, 0},
      {"count", gather, 1, 0, kStoreMaxGather + 1},
      {"operation 0", 0, 1, 0, 0},
      {"operation 9", 9, 1, 0, 0},
  };
  const auto server = Serve();
  for (const Claim& claim : claims) {
    CASE(claim.name);
    StoreRequest request;
    request.op = static_cast<StoreOp>(claim.op);
    request.key_bytes = claim.key_bytes;
    request.value_bytes = claim.value_bytes;
    request.count = claim.count;
    Socket socket = DialProven(*server);
    SendText(&socket, request.Encode());
    char header[StoreReply::kBytes];
    ASSERT_OK(socket.RecvAll(header, sizeof(header), Deadline::After(kLong)));
    StoreReply reply;
    ASSERT_OK(StoreReply::Decode(header, &reply));
    EXPECT_EQ(reply.code, TFR_INVALID_ARGUMENT);
    EXPECT_TRUE(IsClosed(&socket));
  }
}

TEST(a_claimed_size_alone_takes_no_memory) {
  const auto server = Serve();
  const auto client = Dial(*server);
  const long before_kb = ResidentKb();
  std::vector<Socket> sockets;
  for (int i = 0; i < 16; ++i) {
    sockets.push_back(DialProven(*server));
    StoreRequest request;
    request.op = StoreOp::kSet;
    request.key_bytes = 3;
    request.value_bytes = kStoreMaxValueBytes;
    SendText(&sockets.back(), request.Encode() + "bigsome bytes");
  }
  // Answered after what came before it has been read.
  ASSERT_OK(client->Set("key", "x"));
  EXPECT_LT(ResidentKb() - before_kb, 64L * 1024);
}

TEST(a_large_value_goes_to_slow_readers_without_delaying_others) {
  const auto server = Serve();
  const auto client = Dial(*server);
  const std::string value(16 << 20, 'v');
  ASSERT_OK(client->Set("big", value));
  std::vector<Socket> slow;
  StoreRequest request;
  request.op = StoreOp::kGet;
  request.key_bytes = 3;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(DialProven(*server));
    SendText(&slow.back(), request.Encode() + "big");
  }
  for (int i = 0; i < 20; ++i) EXPECT_OK(client->Set("small", "x"));
  for (Socket& socket : slow) {
    std::string reply(StoreReply::kBytes + value.size(), '\0');
    EXPECT_OK(
        socket.RecvAll(reply.data(), reply.size(), Deadline::After(kLong)));
    EXPECT_TRUE(reply.compare(StoreReply::kBytes, value.size(), value) == 0);
  }
}

TEST(a_waiting_client_that_leaves_is_forgotten) {
  const auto server = Serve();
  const auto client = Dial(*server);
  const int before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    Socket socket = DialProven(*server);
    StoreRequest request;
    request.op = i % 2 == 0 ? StoreOp::kGet : StoreOp::kGather;
    request.key_bytes = 4;
    request.count = 1;
    request.timeout_ns = kStoreWaitForever;
    SendText(&socket, request.Encode() + "late");
  }
  while (OpenDescriptors() > before) std::this_thread::yield();
  EXPECT_OK(client->Set("late", "x"));
  EXPECT_OK(client->Set("late/0", "x"));
}

TEST(closing_the_server_ends_clients_that_wait) {
  auto server = Serve();
  std::atomic<int> connected{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto client = Dial(*server);
      ++connected;
      std::string value;
      std::vector<std::string> values;
      const Status status =
          i % 2 == 0 ? client->Get("never", kForever, &value)
                     : client->Gather("never", 2, kForever, &values, nullptr);
      EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
      EXPECT_CONTAINS(status.message(), "lost the store at 127.0.0.1:");
      // The client stays broken and says so.
      EXPECT_EQ(client->Set("key", "x").code(), TFR_UNAVAILABLE);
    });
  }
  while (connected < 4) std::this_thread::yield();
  server.reset();
  for (std::thread& thread : threads) thread.join();
}

TEST(servers_that_come_and_go_leave_nothing_open) {
  Serve();
  const int before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    const auto server = Serve();
    const auto client = Dial(*server);
    EXPECT_OK(client->Set("key", "x"));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(a_port_is_free_again_when_the_server_is_closed) {
  auto server = Serve();
  StoreServerOptions options;
  options.host = "127.0.0.1";
  options.port = server->port();
  options.secret = kSecret;
  EXPECT_OK(Dial(*server)->Set("key", "x"));
  std::unique_ptr<StoreServer> second;
  EXPECT_EQ(StoreServer::Start(options, &second).code(), TFR_UNAVAILABLE);
  server.reset();
  EXPECT_OK(StoreServer::Start(options, &second));
}

// Processor time that the process takes in half a second in which nothing
// happens.
double IdleCost() {
  timespec before;
  timespec after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  return static_cast<double>(after.tv_sec - before.tv_sec) +
         1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
}

TEST(an_idle_store_with_waiting_clients_costs_no_processor_time) {
  const auto server = Serve();
  std::vector<Socket> waiting;
  StoreRequest request;
  request.op = StoreOp::kGet;
  request.key_bytes = 5;
  request.timeout_ns = int64_t{3600} * 1000000000;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(DialProven(*server));
    // The second request is not read before the first is answered.
    SendText(&waiting.back(), request.Encode() + "never" + request.Encode());
  }
  EXPECT_OK(Dial(*server)->Set("key", "x"));
  EXPECT_LT(IdleCost(), 0.05);
}

TEST(a_connection_that_a_forked_child_holds_open_costs_nothing_once_closed) {
  const auto server = Serve();
  const int before = OpenDescriptors();
  Socket client = DialProven(*server);
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    check::EndWithParent(self);
    for (;;) pause();
  }
  client.Shutdown();
  client.Close();
  while (OpenDescriptors() > before) std::this_thread::yield();
  EXPECT_LT(IdleCost(), 0.05);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(a_store_without_descriptors_left_drops_strangers_and_recovers) {
  rlimit former;
  getrlimit(RLIMIT_NOFILE, &former);
  const auto server = Serve();
  const auto client = Dial(*server);
  std::vector<Socket> strangers;
  rlimit low = former;
  low.rlim_cur = static_cast<rlim_t>(OpenDescriptors() + 21);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int i = 0; i < 40; ++i) {
    Socket socket;
    if (!Socket::Connect(AddressOf(*server), Deadline::After(0.5), &socket)
             .ok()) {
      break;
    }
    strangers.push_back(std::move(socket));
  }
  EXPECT_GE(strangers.size(), size_t{5});
  EXPECT_OK(client->Set("key", "x"));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &former), 0);
  EXPECT_OK(Dial(*server)->Set("key", "y"));
}

}  // namespace
}  // namespace tfring
