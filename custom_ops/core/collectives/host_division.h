// The pieces of one chunk that hosts reduce together.
//
// A chunk has a part for every host. Staged elements lie in slots and results
// as the chunk's layout says; contributions, which are partial results, are
// packed, part after part. Both are padded to 64 bytes after each piece.
#ifndef TFRING_CORE_COLLECTIVES_HOST_DIVISION_H_
#define TFRING_CORE_COLLECTIVES_HOST_DIVISION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/core/collectives/stream.h"

namespace tfring {

// A run of elements of one tensor.
struct HostPiece {
  size_t tensor;
  const char* input;  // this rank's
  char* output;       // null: this rank takes no result
  uint64_t at;        // bytes from the chunk's begin, as staged
  uint64_t packed;    // bytes from the begin of the contributions
  uint64_t bytes;     // as staged
  uint64_t count;     // elements
};

class HostDivision {
 public:
  void Clear() {
    pieces_.clear();
    begins_ = {0};
    packed_ = {0};
  }
  // Pieces added from now on are the next host's.
  void BeginPart() {
    begins_.push_back(pieces_.size());
    packed_.push_back(packed_.back());
  }
  // `partial_bytes`: of an element on its way between hosts.
  void Add(HostPiece piece, uint64_t partial_bytes) {
    piece.packed = packed_.back();
    pieces_.push_back(piece);
    begins_.back() = pieces_.size();
    packed_.back() += AlignStream(piece.count * partial_bytes);
  }

  const std::vector<HostPiece>& pieces() const { return pieces_; }
  // Calls f(piece) for those of a part.
  template <typename F>
  void ForPart(int part, F&& f) const {
    const auto p = static_cast<size_t>(part);
    for (size_t i = begins_[p]; i < begins_[p + 1]; ++i) f(pieces_[i]);
  }
  // Where a part lies among the contributions.
  Range PackedOf(int part) const {
    const auto p = static_cast<size_t>(part);
    return {packed_[p], packed_[p + 1]};
  }

 private:
  std::vector<HostPiece> pieces_;
  std::vector<size_t> begins_;  // of each part, then the end
  std::vector<uint64_t> packed_;
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_HOST_DIVISION_H_
