// The store's keys and the requests that wait for them, without any network.
#ifndef TFRING_CORE_RENDEZVOUS_STORE_TABLE_H_
#define TFRING_CORE_RENDEZVOUS_STORE_TABLE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "custom_ops/core/common/status.h"

namespace tfring {

// Values are shared with the replies that carry them, never copied. A waiting
// request is known by a number of the caller's. Not thread safe.
class StoreTable {
 public:
  using Value = std::shared_ptr<const std::string>;

  // Null if the key is absent.
  Value Find(const std::string& key) const;

  // Appends to `ready` the waiting requests that this key completes; they wait
  // no longer. Returns whether the key was set.
  bool Set(const std::string& key, Value value, bool only_if_absent,
           std::vector<uint64_t>* ready);

  // The absent ones of prefix/0 .. prefix/n-1.
  std::vector<uint32_t> Missing(const std::string& prefix, uint32_t n) const;

  // The values of prefix/0 .. prefix/n-1, which must exist, as the payload of
  // a reply. RESOURCE_EXHAUSTED if it would be too large.
  Status Gathered(const std::string& prefix, uint32_t n, Value* payload);

  // Waits for a key that is absent.
  void AwaitKey(uint64_t request, const std::string& key);
  // Waits for `missing` more keys of prefix/0 .. prefix/n-1.
  void AwaitPrefix(uint64_t request, const std::string& prefix, uint32_t n,
                   uint32_t missing);
  // Does nothing if the request does not wait.
  void StopWaiting(uint64_t request);

 private:
  struct Waiter {
    std::string name;  // the key, or the prefix of a gather
    bool gathers = false;
    uint32_t n = 0;
    uint32_t missing = 1;
  };
  using Index = std::unordered_map<std::string, std::set<uint64_t>>;

  void Completed(const std::string& name, bool gathers, uint32_t index,
                 std::vector<uint64_t>* ready);

  std::unordered_map<std::string, Value> values_;
  std::unordered_map<uint64_t, Waiter> waiters_;
  Index by_key_;
  Index by_prefix_;

  // All ranks ask for the same payload: the last one made is kept.
  std::string last_prefix_;
  uint32_t last_n_ = 0;
  Value last_payload_;
};

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_STORE_TABLE_H_
