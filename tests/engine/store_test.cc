#include <dirent.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "custom_ops/core/common/wire.h"
#include "custom_ops/core/rendezvous/store_client.h"
#include "custom_ops/core/rendezvous/store_protocol.h"
#include "custom_ops/core/rendezvous/store_server.h"
#include "custom_ops/core/rendezvous/store_table.h"
#include "custom_ops/core/tfring.h"
#include "custom_ops/core/transport/handshake.h"

namespace tfring {
namespace {

constexpr double kLong = 30.0;
constexpr double kShort = 0.05;
constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr char kSecret[] = "the secret";

std::unique_ptr<StoreServer> Serve(double handshake_timeout_s = kLong) {
  StoreServerOptions options;
  options.host = "127.0.0.1";
  options.secret = kSecret;
  options.handshake_timeout_s = handshake_timeout_s;
  std::unique_ptr<StoreServer> server;
  EXPECT_OK(StoreServer::Start(options, &server));
  return server;
}

std::string AddressOf(const StoreServer& server) {
  return JoinHostPort("127.0.0.1", server.port());
}

std::unique_ptr<StoreClient> Dial(const StoreServer& server) {
  std::unique_ptr<StoreClient> client;
  EXPECT_OK(StoreClient::Connect(AddressOf(server), kSecret, kLong, &client));
  return client;
}

// A connection without a client behind it.
Socket DialRaw(const StoreServer& server) {
  Socket socket;
  EXPECT_OK(
      Socket::Connect(AddressOf(server), Deadline::After(kLong), &socket));
  return socket;
}

Socket DialProven(const StoreServer& server) {
  Socket socket = DialRaw(server);
  Hello mine;
  mine.purpose = kPurposeStore;
  Hello theirs;
  EXPECT_OK(
      ClientHandshake(socket, kSecret, mine, &theirs, Deadline::After(kLong)));
  return socket;
}

void SendText(Socket* socket, const std::string& text) {
  EXPECT_OK(socket->SendAll(text.data(), text.size(), Deadline::After(kLong)));
}

// True if the server closes the connection; what it sends before is dropped.
bool IsClosed(Socket* socket) {
  for (;;) {
    char byte;
    const Status status = socket->RecvAll(&byte, 1, Deadline::After(kLong));
    if (!status.ok()) return status.code() == TFR_UNAVAILABLE;
  }
}

// The kilobytes of this process's memory that are in use ("VmRSS").
long ResidentKb() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  char line[256];
  long kb = -1;
  while (kb < 0 && std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "VmRSS: %ld", &kb) != 1) kb = -1;
  }
  std::fclose(file);
  return kb;
}

int OpenDescriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST(what_is_set_can_be_got_by_another_client) {
  const auto server = Serve();
  const auto a = Dial(*server);
  const auto b = Dial(*server);
  const std::string binary("a\0b\xff", 4);
  for (const std::string& value : {std::string(), std::string("x"), binary}) {
    CASE(value.size(), " bytes");
    std::string got = "former";
    ASSERT_OK(a->Set("key", value));
    ASSERT_OK(b->Get("key", kLong, &got));
    EXPECT_TRUE(got == value);
  }
  EXPECT_EQ(a->LocalHost(), "127.0.0.1");
}

TEST(values_of_many_sizes_survive) {
  const auto server = Serve();
  const auto client = Dial(*server);
  for (const size_t size :
       {1u, 31u, 32u, 33u, 262143u, 262144u, 262145u, 5u << 20}) {
    CASE("size ", size);
    std::string value(size, '\0');
    for (size_t i = 0; i < size; ++i)
      value[i] = static_cast<char>(i * 7 + i / 256);
    std::string got;
    ASSERT_OK(client->Set("key", value));
    ASSERT_OK(client->Get("key", 0, &got));
    EXPECT_TRUE(got == value);
  }
}

TEST(a_key_that_is_absent_is_named) {
  const auto server = Serve();
  const auto client = Dial(*server);
  std::string value;
  const Status once = client->Get("no such", 0, &value);
  EXPECT_EQ(once.code(), TFR_NOT_FOUND);
  EXPECT_CONTAINS(once.message(), "\"no such\"");
  const Status waited = client->Get("no such", kShort, &value);
  EXPECT_EQ(waited.code(), TFR_DEADLINE_EXCEEDED);
  EXPECT_CONTAINS(waited.message(), "\"no such\"");
  EXPECT_CONTAINS(waited.message(), AddressOf(*server));
  // The client is as good as new.
  ASSERT_OK(client->Set("no such", "x"));
  EXPECT_OK(client->Get("no such", 0, &value));
}

TEST(a_get_waits_for_the_set) {
  for (const double timeout_s : {kLong, kForever}) {
    CASE("timeout ", timeout_s);
    const auto server = Serve();
    std::vector<std::thread> threads;
    std::vector<std::string> values(4);
    for (std::string& value : values) {
      threads.emplace_back(
          [&] { EXPECT_OK(Dial(*server)->Get("late", timeout_s, &value)); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_OK(Dial(*server)->Set("late", "value"));
    for (std::thread& thread : threads) thread.join();
    for (const std::string& value : values) EXPECT_EQ(value, "value");
  }
}

TEST(set_once_is_won_by_one_of_eight_threads) {
  const auto server = Serve();
  for (int round = 0; round < 20; ++round) {
    CASE("round ", round);
    const std::string key = StrCat("race/", round);
    std::atomic<int> winners{0};
    std::atomic<int> winner{-1};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        const std::string value = std::to_string(i);
        bool was_set = false;
        EXPECT_OK(
            Dial(*server)->SetOnce(key, value.data(), value.size(), &was_set));
        if (!was_set) return;
        ++winners;
        winner = i;
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string value;
    ASSERT_OK(Dial(*server)->Get(key, 0, &value));
    EXPECT_EQ(winners.load(), 1);
    EXPECT_EQ(value, std::to_string(winner.load()));
  }
}

TEST(threads_may_share_a_client) {
  const auto server = Serve();
  const auto client = Dial(*server);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        const std::string key = StrCat(i, "/", round);
        std::string value;
        EXPECT_OK(client->Set(key, key + "!"));
        EXPECT_OK(client->Get(key, 0, &value));
        EXPECT_EQ(value, key + "!");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(a_gather_gives_all_values_in_order_to_all) {
  const auto server = Serve();
  constexpr int kRanks = 12;
  std::vector<std::thread> threads;
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    threads.emplace_back([&, rank] {
      CASE("rank ", rank);
      const auto client = Dial(*server);
      // Values of different sizes, one of them empty.
      EXPECT_OK(client->Set(StrCat("ranks/", rank), std::string(rank, 'r')));
      std::vector<std::string> values;
      std::vector<int32_t> missing = {99};
      EXPECT_OK(client->Gather("ranks", kRanks, kLong, &values, &missing));
      EXPECT_TRUE(missing.empty());
      EXPECT_EQ(values.size(), size_t{kRanks});
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i], std::string(i, 'r'));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(a_gather_that_times_out_lists_the_missing) {
  const auto server = Serve();
  const auto client = Dial(*server);
  // Not indices: a second slash, a leading zero, another prefix.
  for (const char* key : {"p/1", "p/3", "p/2/0", "p/00", "q/0", "p/", "p/5x"}) {
    ASSERT_OK(client->Set(key, "x"));
  }
  for (const double timeout_s : {0.0, kShort}) {
    CASE("timeout ", timeout_s);
    std::vector<std::string> values;
    std::vector<int32_t> missing;
    const Status status = client->Gather("p", 5, timeout_s, &values, &missing);
    EXPECT_EQ(status.code(), TFR_DEADLINE_EXCEEDED);
    EXPECT_EQ(missing, (std::vector<int32_t>{0, 2, 4}));
    EXPECT_CONTAINS(status.message(), "3 of the 5 keys p/*");
    EXPECT_CONTAINS(status.message(), "missing: 0, 2, 4");
  }
}

TEST(a_gather_counts_a_key_that_is_set_twice_once) {
  const auto server = Serve();
  std::vector<std::string> values;
  Status status;
  std::thread waiter(
      [&] { status = Dial(*server)->Gather("p", 3, kLong, &values, nullptr); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto client = Dial(*server);
  for (const char* key : {"p/1", "p/1", "p/1", "p/7", "p/0", "p/2"}) {
    EXPECT_OK(client->Set(key, key));
  }
  waiter.join();
  EXPECT_OK(status);
  EXPECT_EQ(values, (std::vector<std::string>{"p/0", "p/1", "p/2"}));
}

TEST(a_gather_after_an_overwrite_sees_the_new_value) {
  const auto server = Serve();
  const auto client = Dial(*server);
  for (const std::string value : {"old", "new"}) {
    CASE(value);
    ASSERT_OK(client->Set("p/0", value));
    std::vector<std::string> values;
    ASSERT_OK(client->Gather("p", 1, 0, &values, nullptr));
    EXPECT_EQ(values, std::vector<std::string>{value});
  }
}

TEST(a_gather_of_nothing_is_empty) {
  const auto server = Serve();
  std::vector<std::string> values = {"x"};
  ASSERT_OK(Dial(*server)->Gather("p", 0, kLong, &values, nullptr));
  EXPECT_TRUE(values.empty());
}

TEST(arguments_out_of_range_are_refused_and_do_no_harm) {
  const auto server = Serve();
  const auto client = Dial(*server);
  std::string value;
  std::vector<std::string> values;
  const std::string long_key(kStoreMaxKeyBytes + 1, 'k');
  EXPECT_EQ(client->Set("", "x").code(), TFR_INVALID_ARGUMENT);
  EXPECT_EQ(client->Set(long_key, "x").code(), TFR_INVALID_ARGUMENT);
  EXPECT_EQ(client->Set("key", "x", kStoreMaxValueBytes + 1).code(),
            TFR_INVALID_ARGUMENT);
  EXPECT_EQ(client->Get("key", -1, &value).code(), TFR_INVALID_ARGUMENT);
  EXPECT_EQ(client->Gather("p", -1, 1, &values, nullptr).code(),
            TFR_INVALID_ARGUMENT);
  EXPECT_OK(client->Set(long_key.substr(1), "x"));
}

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
  const auto server = Serve(0.2);
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

TEST(table_tells_which_requests_a_key_completes) {
  StoreTable table;
  const auto value = std::make_shared<const std::string>("v");
  table.AwaitKey(1, "p/1");
  table.AwaitPrefix(2, "p", 2, 2);
  table.AwaitPrefix(3, "p", 3, 3);
  table.AwaitKey(4, "p/1");
  table.StopWaiting(4);
  std::vector<uint64_t> ready;
  EXPECT_TRUE(table.Set("p/1", value, true, &ready));
  EXPECT_EQ(ready, std::vector<uint64_t>{1});
  ready.clear();
  EXPECT_FALSE(table.Set("p/1", value, true, &ready));
  EXPECT_TRUE(table.Set("p/0", value, false, &ready));
  EXPECT_EQ(ready, std::vector<uint64_t>{2});
  EXPECT_EQ(table.Missing("p", 4), (std::vector<uint32_t>{2, 3}));
}

TEST(the_c_face_does_the_same) {
  tfr_error error = {};
  tfr_store_server* server = nullptr;
  tfr_store_client* client = nullptr;
  int32_t port = 0;
  ASSERT_EQ(tfr_store_serve("", 0, kSecret, &server, &port, &error), TFR_OK);
  const std::string address = JoinHostPort("127.0.0.1", port);
  ASSERT_EQ(tfr_store_connect(address.c_str(), kSecret, kLong, &client, &error),
            TFR_OK);
  const uint8_t data[] = {1, 0, 2};
  int32_t was_set = -1;
  EXPECT_EQ(tfr_store_set_once(client, "key", data, 3, &was_set, &error), 0);
  EXPECT_EQ(was_set, 1);
  EXPECT_EQ(tfr_store_set_once(client, "key", nullptr, 0, &was_set, &error), 0);
  EXPECT_EQ(was_set, 0);
  tfr_bytes bytes = {};
  ASSERT_EQ(tfr_store_get(client, "key", 0, &bytes, &error), TFR_OK);
  EXPECT_TRUE(bytes.size == 3 && std::memcmp(bytes.data, data, 3) == 0);
  tfr_bytes_free(&bytes);
  tfr_bytes_free(&bytes);
  EXPECT_EQ(tfr_store_set(client, "key", nullptr, 0, &error), TFR_OK);
  ASSERT_EQ(tfr_store_get(client, "key", 0, &bytes, &error), TFR_OK);
  EXPECT_TRUE(bytes.size == 0 && bytes.data != nullptr);
  tfr_bytes_free(&bytes);
  EXPECT_EQ(tfr_store_get(client, "none", 0, &bytes, &error), TFR_NOT_FOUND);
  EXPECT_EQ(error.code, TFR_NOT_FOUND);
  EXPECT_CONTAINS(error.text, "\"none\"");
  EXPECT_EQ(tfr_store_set(client, nullptr, data, 3, nullptr),
            TFR_INVALID_ARGUMENT);
  tfr_store_client_close(client);
  tfr_store_server_close(server);
}

TEST(the_c_face_refuses_an_empty_secret) {
  tfr_error error = {};
  tfr_store_server* server = nullptr;
  int32_t port = 0;
  EXPECT_EQ(tfr_store_serve("", 0, "", &server, &port, &error),
            TFR_INVALID_ARGUMENT);
  EXPECT_CONTAINS(error.text, "`secret`");
  EXPECT_TRUE(server == nullptr);
}

}  // namespace
}  // namespace tfring
