// The tensors of one request laid end to end: a stream of bytes that the data
// plane cuts into chunks. Each tensor starts at a multiple of 64 bytes and so
// does every cut, so no element is ever split. Nothing is copied to form a
// stream: it is a list of places.
#ifndef TFRING_CORE_COLLECTIVES_STREAM_H_
#define TFRING_CORE_COLLECTIVES_STREAM_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tfring {

constexpr uint64_t kStreamAlignment = 64;

inline uint64_t AlignStream(uint64_t bytes) {
  return (bytes + kStreamAlignment - 1) / kStreamAlignment * kStreamAlignment;
}

// Some bytes of a stream.
struct Range {
  uint64_t begin;
  uint64_t end;

  bool empty() const { return begin == end; }
  uint64_t size() const { return end - begin; }
};

// Where the `part`-th of `parts` shares of [begin, end) starts; aligned.
inline uint64_t ShareBegin(uint64_t begin, uint64_t end, uint64_t part,
                           uint64_t parts) {
  const uint64_t units =
      (end - begin + kStreamAlignment - 1) / kStreamAlignment;
  return std::min(end, begin + units * part / parts * kStreamAlignment);
}

class Stream {
 public:
  void Reserve(size_t tensors) { begins_.reserve(tensors + 1); }
  // Appends a tensor of `bytes` bytes.
  void Add(uint64_t bytes) {
    begins_.push_back(begins_.back() + AlignStream(bytes));
    sizes_.push_back(bytes);
  }

  // Total bytes, padding included.
  uint64_t size() const { return begins_.back(); }

  // Calls f(tensor, offset, bytes, at) for each piece of a tensor inside
  // [begin, end): `offset` within the tensor, `at` within the stream.
  template <typename F>
  void ForRange(uint64_t begin, uint64_t end, F&& f) const {
    if (begin >= end) return;
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
    size_t tensor = static_cast<size_t>(after - begins_.begin()) - 1;
    for (; tensor < sizes_.size() && begins_[tensor] < end; ++tensor) {
      const uint64_t first = std::max(begin, begins_[tensor]);
      const uint64_t last = std::min(end, begins_[tensor] + sizes_[tensor]);
      if (first < last) f(tensor, first - begins_[tensor], last - first, first);
    }
  }

 private:
  std::vector<uint64_t> begins_{0};
  std::vector<uint64_t> sizes_;
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_STREAM_H_
