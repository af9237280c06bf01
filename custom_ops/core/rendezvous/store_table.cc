#include "custom_ops/core/rendezvous/store_table.h"

#include <utility>

#include "custom_ops/core/common/wire.h"
#include "custom_ops/core/rendezvous/store_protocol.h"

namespace tfring {
namespace {

std::string IndexedKey(const std::string& prefix, uint32_t index) {
  return prefix + "/" + std::to_string(index);
}

// Splits "prefix/12"; false unless the index is written as IndexedKey does.
bool SplitIndexedKey(const std::string& key, std::string* prefix,
                     uint32_t* index) {
  const size_t slash = key.rfind('/');
  if (slash == std::string::npos) return false;
  const std::string digits = key.substr(slash + 1);
  if (digits.empty() || digits.size() > 9) return false;
  if (digits.size() > 1 && digits.front() == '0') return false;
  uint32_t value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  *prefix = key.substr(0, slash);
  *index = value;
  return true;
}

}  // namespace

StoreTable::Value StoreTable::Find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

bool StoreTable::Set(const std::string& key, Value value, bool only_if_absent,
                     std::vector<uint64_t>* ready) {
  const auto [place, is_new] = values_.try_emplace(key, nullptr);
  if (!is_new && only_if_absent) return false;
  place->second = std::move(value);
  std::string prefix;
  uint32_t index = 0;
  const bool indexed = SplitIndexedKey(key, &prefix, &index);
  if (indexed && prefix == last_prefix_) last_payload_.reset();
  if (is_new) {
    Completed(key, false, 0, ready);
    if (indexed) Completed(prefix, true, index, ready);
  }
  return true;
}

void StoreTable::Completed(const std::string& name, bool gathers,
                           uint32_t index, std::vector<uint64_t>* ready) {
  const Index& waiting = gathers ? by_prefix_ : by_key_;
  const auto found = waiting.find(name);
  if (found == waiting.end()) return;
  const size_t first = ready->size();
  for (const uint64_t request : found->second) {
    Waiter& waiter = waiters_.at(request);
    if (gathers && index >= waiter.n) continue;
    if (--waiter.missing == 0) ready->push_back(request);
  }
  for (size_t i = first; i < ready->size(); ++i) StopWaiting((*ready)[i]);
}

std::vector<uint32_t> StoreTable::Missing(const std::string& prefix,
                                          uint32_t n) const {
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < n; ++i) {
    if (values_.count(IndexedKey(prefix, i)) == 0) missing.push_back(i);
  }
  return missing;
}

Status StoreTable::Gathered(const std::string& prefix, uint32_t n,
                            Value* payload) {
  if (last_payload_ != nullptr && last_prefix_ == prefix && last_n_ == n) {
    *payload = last_payload_;
    return Status::Ok();
  }
  std::vector<Value> values;
  uint64_t total = 0;
  for (uint32_t i = 0; i < n; ++i) {
    values.push_back(values_.at(IndexedKey(prefix, i)));
    total += sizeof(uint64_t) + values.back()->size();
  }
  if (total > kStoreMaxReplyBytes) {
    return ResourceExhausted(StrCat(
        "the values of ", prefix, "/0 to ", prefix, "/", n - 1, " have ", total,
        " bytes; a gather carries at most ", kStoreMaxReplyBytes));
  }
  auto joined = std::make_shared<std::string>();
  joined->reserve(total);
  for (const Value& value : values) {
    AppendInt<uint64_t>(value->size(), joined.get());
    *joined += *value;
  }
  last_prefix_ = prefix;
  last_n_ = n;
  last_payload_ = std::move(joined);
  *payload = last_payload_;
  return Status::Ok();
}

void StoreTable::AwaitKey(uint64_t request, const std::string& key) {
  waiters_[request] = {key, false, 0, 1};
  by_key_[key].insert(request);
}

void StoreTable::AwaitPrefix(uint64_t request, const std::string& prefix,
                             uint32_t n, uint32_t missing) {
  waiters_[request] = {prefix, true, n, missing};
  by_prefix_[prefix].insert(request);
}

void StoreTable::StopWaiting(uint64_t request) {
  const auto found = waiters_.find(request);
  if (found == waiters_.end()) return;
  Index& index = found->second.gathers ? by_prefix_ : by_key_;
  const auto entry = index.find(found->second.name);
  entry->second.erase(request);
  if (entry->second.empty()) index.erase(entry);
  waiters_.erase(found);
}

}  // namespace tfring
