// How the bytes of a slot are divided among the ranks that they are for.
//
// Where ranks get different bytes (reducescatter, alltoall), each chunk of a
// slot holds a part for every destination, all parts of one size, so the place
// of a part needs no message. If a chunk is too small for parts of 64 bytes,
// destinations take turns.
#ifndef TFRING_CORE_COLLECTIVES_PARTITION_H_
#define TFRING_CORE_COLLECTIVES_PARTITION_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/core/collectives/stream.h"

namespace tfring {

class Partition {
 public:
  Partition(uint64_t chunk_bytes, uint64_t parts) {
    const uint64_t most = std::max<uint64_t>(chunk_bytes / kStreamAlignment, 1);
    per_chunk_ = std::min(std::max<uint64_t>(parts, 1), most);
    turns_ = (std::max<uint64_t>(parts, 1) + per_chunk_ - 1) / per_chunk_;
    part_bytes_ =
        chunk_bytes / per_chunk_ / kStreamAlignment * kStreamAlignment;
  }

  // Chunks that it takes to bring `bytes` bytes to each destination.
  uint64_t StepsFor(uint64_t bytes) const {
    return (bytes + part_bytes_ - 1) / part_bytes_ * turns_;
  }

  // Which of the `bytes` bytes for destination `part` are in the step's chunk.
  Range RangeOf(uint64_t part, uint64_t step, uint64_t bytes) const {
    if (step % turns_ != part / per_chunk_) return {0, 0};
    const uint64_t round = step / turns_;
    return {std::min(bytes, round * part_bytes_),
            std::min(bytes, (round + 1) * part_bytes_)};
  }

  // How many there may be.
  uint64_t part_bytes() const { return part_bytes_; }

  // Where in the chunk they are.
  uint64_t PlaceOf(uint64_t part) const {
    return part % per_chunk_ * part_bytes_;
  }

 private:
  uint64_t per_chunk_;   // parts that travel together
  uint64_t turns_;       // chunks until every destination had its turn
  uint64_t part_bytes_;  // a multiple of 64
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_PARTITION_H_
