// What the tests of the store share: a server, clients, bare connections, and
// what this process uses.
#ifndef TFRING_TESTS_ENGINE_STORE_H_
#define TFRING_TESTS_ENGINE_STORE_H_

#include <dirent.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "check.h"
#include "custom_ops/core/rendezvous/store_client.h"
#include "custom_ops/core/rendezvous/store_server.h"
#include "custom_ops/core/transport/handshake.h"

namespace tfring {

constexpr double kLong = 30.0;
constexpr double kShort = 0.05;
constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr char kSecret[] = "the secret";

inline std::unique_ptr<StoreServer> Serve(double handshake_timeout_s = kLong) {
  StoreServerOptions options;
  options.host = "127.0.0.1";
  options.secret = kSecret;
  options.handshake_timeout_s = handshake_timeout_s;
  std::unique_ptr<StoreServer> server;
  EXPECT_OK(StoreServer::Start(options, &server));
  return server;
}

inline std::string AddressOf(const StoreServer& server) {
  return JoinHostPort("127.0.0.1", server.port());
}

inline std::unique_ptr<StoreClient> Dial(const StoreServer& server) {
  std::unique_ptr<StoreClient> client;
  EXPECT_OK(StoreClient::Connect(AddressOf(server), kSecret, kLong, &client));
  return client;
}

// A connection without a client behind it.
inline Socket DialRaw(const StoreServer& server) {
  Socket socket;
  EXPECT_OK(
      Socket::Connect(AddressOf(server), Deadline::After(kLong), &socket));
  return socket;
}

inline Socket DialProven(const StoreServer& server) {
  Socket socket = DialRaw(server);
  Hello mine;
  mine.purpose = kPurposeStore;
  Hello theirs;
  EXPECT_OK(
      ClientHandshake(socket, kSecret, mine, &theirs, Deadline::After(kLong)));
  return socket;
}

inline void SendText(Socket* socket, const std::string& text) {
  EXPECT_OK(socket->SendAll(text.data(), text.size(), Deadline::After(kLong)));
}

// True if the server closes the connection; what it sends before is dropped.
inline bool IsClosed(Socket* socket) {
  for (;;) {
    char byte;
    const Status status = socket->RecvAll(&byte, 1, Deadline::After(kLong));
    if (!status.ok()) return status.code() == TFR_UNAVAILABLE;
  }
}

// The kilobytes of this process's memory that are in use ("VmRSS").
inline long ResidentKb() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  char line[256];
  long kb = -1;
  while (kb < 0 && std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "VmRSS: %ld", &kb) != 1) kb = -1;
  }
  std::fclose(file);
  return kb;
}

inline int OpenDescriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

}  // namespace tfring

#endif  // TFRING_TESTS_ENGINE_STORE_H_
