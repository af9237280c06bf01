// Elements that are computed on their way into memory that others read.
#ifndef TFRING_CORE_COLLECTIVES_STORE_ELEMENTS_H_
#define TFRING_CORE_COLLECTIVES_STORE_ELEMENTS_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/common/copy.h"

namespace tfring {

// What the first-level cache holds between two passes.
constexpr uint64_t kBlockBytes = 16 * 1024;

// fill(first, some, out) makes some of the `count` elements of `element` bytes
// each: at `to`, or, where stores are to pass the cache, in blocks that are
// copied there.
template <typename Fill>
void StoreElements(uint64_t count, uint64_t element, char* to, Stores stores,
                   Fill&& fill) {
  if (stores == Stores::kPlain) return fill(uint64_t{0}, count, to);
  alignas(kStreamAlignment) char block[kBlockBytes];
  for (uint64_t done = 0; done < count;) {
    const uint64_t some = std::min(count - done, kBlockBytes / element);
    fill(done, some, &block[0]);
    CopyBytes(to + done * element, block, some * element, stores);
    done += some;
  }
}

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_STORE_ELEMENTS_H_
