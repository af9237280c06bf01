#include "custom_ops/core/common/processors.h"

#include <errno.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

namespace tfring {
namespace {

// What the kernel can count at most, by a wide margin.
constexpr int kMostProcessors = 1 << 16;

// Gives each process a processor of its own where that is possible: a matching,
// found path by path.
class Seats {
 public:
  explicit Seats(const std::vector<Processors>& all) : all_(all) {}

  bool AllHaveOne() {
    for (size_t p = 0; p < all_.size(); ++p) {
      seen_.clear();
      if (!Seat(p)) return false;
    }
    return true;
  }

 private:
  // ... moving others where it must.
  bool Seat(size_t process) {
    for (const int processor : all_[process].numbers()) {
      if (!seen_.insert(processor).second) continue;
      const auto taken = taken_.find(processor);
      if (taken != taken_.end() && !Seat(taken->second)) continue;
      taken_[processor] = process;
      return true;
    }
    return false;
  }

  const std::vector<Processors>& all_;
  std::map<int, size_t> taken_;  // processor: process
  std::set<int> seen_;
};

}  // namespace

Processors Processors::OfThisThread() {
  std::set<int> numbers;
  for (int most = CPU_SETSIZE; most <= kMostProcessors; most *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(most);
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(most), [](cpu_set_t* set) { CPU_FREE(set); });
    if (mask == nullptr) break;
    CPU_ZERO_S(bytes, mask.get());
    if (sched_getaffinity(0, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;  // the machine has more
      break;
    }
    for (int i = 0; i < most; ++i) {
      if (CPU_ISSET_S(static_cast<size_t>(i), bytes, mask.get())) {
        numbers.insert(i);
      }
    }
    break;
  }
  return Processors(std::move(numbers));
}

std::string Processors::Encode() const {
  std::string text;
  for (auto it = numbers_.begin(); it != numbers_.end();) {
    const int first = *it;
    int last = first;
    while (++it != numbers_.end() && *it == last + 1) last = *it;
    if (!text.empty()) text += ",";
    text += std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

Processors Processors::Decode(const std::string& text) {
  std::set<int> numbers;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* behind = nullptr;
    const long first = std::strtol(at, &behind, 10);
    if (behind == at) break;
    long last = first;
    if (*behind == '-') last = std::strtol(behind + 1, &behind, 10);
    last = std::min<long>(last, kMostProcessors);
    for (long i = std::max(first, 0L); i <= last; ++i) {
      numbers.insert(static_cast<int>(i));
    }
    at = *behind == ',' ? behind + 1 : behind;
    if (at == behind) break;
  }
  return Processors(std::move(numbers));
}

ProcessorShare ShareProcessors(const std::vector<Processors>& all, size_t me) {
  std::set<int> any;
  for (const Processors& one : all) {
    any.insert(one.numbers().begin(), one.numbers().end());
  }
  ProcessorShare share;
  share.crowded = !Seats(all).AllHaveOne();
  share.processors =
      std::max<size_t>(std::min(all[me].count(), any.size() / all.size()), 1);
  return share;
}

}  // namespace tfring
