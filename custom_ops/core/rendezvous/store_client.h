// A blocking client of the store.
#ifndef TFRING_CORE_RENDEZVOUS_STORE_CLIENT_H_
#define TFRING_CORE_RENDEZVOUS_STORE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/rendezvous/store_protocol.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

// All calls may come from any thread, but one mutex serves them one by one: a
// Get() that waits makes others wait. A thread that must not wait opens a
// client of its own. When the connection fails, the call in progress and all
// later ones return UNAVAILABLE.
class StoreClient {
 public:
  // FAILED_PRECONDITION if the store has another secret, UNAVAILABLE if it
  // cannot be reached in time.
  static Status Connect(const std::string& address, const std::string& secret,
                        double timeout_s, std::unique_ptr<StoreClient>* out);

  Status Set(const std::string& key, const void* data, uint64_t size);
  Status Set(const std::string& key, const std::string& value) {
    return Set(key, value.data(), value.size());
  }
  // Sets only if the key is absent.
  Status SetOnce(const std::string& key, const void* data, uint64_t size,
                 bool* was_set);
  // Waits until the key exists. DEADLINE_EXCEEDED after timeout_s; timeout_s 0
  // asks once (NOT_FOUND); an infinite one waits for ever.
  Status Get(const std::string& key, double timeout_s, std::string* value);
  // Waits until the keys prefix/0 .. prefix/n-1 exist and gives their values.
  // DEADLINE_EXCEEDED after timeout_s, with the absent indices in `missing`
  // (may be null), ascending; it is empty after any other outcome.
  Status Gather(const std::string& prefix, int32_t n, double timeout_s,
                std::vector<std::string>* values,
                std::vector<int32_t>* missing);

  // The numeric address by which this process reaches the store.
  std::string LocalHost() const { return socket_.LocalHost(); }
  // For closing the inherited descriptor in a forked child.
  int fd() const { return socket_.fd(); }

 private:
  StoreClient(Socket socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  // The reply to one request; marks the client broken on a transport error.
  Status Call(const StoreRequest& request, const std::string& key,
              const void* data, double timeout_s, StoreReply* reply,
              std::string* payload);
  Status Exchange(const StoreRequest& request, const std::string& key,
                  const void* data, double timeout_s, StoreReply* reply,
                  std::string* payload);
  Status ReceivePayload(uint64_t size, std::string* payload);

  Socket socket_;
  const std::string address_;
  std::mutex mutex_;
  Status broken_;  // guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_STORE_CLIENT_H_
