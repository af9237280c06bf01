// The store as its clients see it.
#include "store.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/rendezvous/store_protocol.h"
#include "custom_ops/core/rendezvous/store_table.h"
#include "custom_ops/core/tfring.h"

namespace tfring {
namespace {

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
