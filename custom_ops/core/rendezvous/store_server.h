// The key-value server where the ranks of a job first meet.
#ifndef TFRING_CORE_RENDEZVOUS_STORE_SERVER_H_
#define TFRING_CORE_RENDEZVOUS_STORE_SERVER_H_

#include <memory>
#include <string>

#include "custom_ops/core/common/status.h"

namespace tfring {

struct StoreServerOptions {
  std::string host;    // "" = every interface
  int port = 0;        // 0 = any free one
  std::string secret;  // must not be empty
  // A connection that has not proved the secret by then is closed.
  double handshake_timeout_s = 10.0;
};

// Serves from one thread that sleeps while nothing happens. Keys are never
// removed. A client's failure, whatever it sends, concerns that client only.
class StoreServer {
 public:
  static Status Start(const StoreServerOptions& options,
                      std::unique_ptr<StoreServer>* out);
  // Closes every connection, joins the thread and frees all.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);

  std::unique_ptr<Loop> loop_;
};

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_STORE_SERVER_H_
