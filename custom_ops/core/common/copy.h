// Copies of megabytes in pieces that pass through the caches.
//
// The C library copies more than some kilobytes with one instruction (rep
// movsb) which takes twice as long on several processors (AMD Zen 3 and 4) when
// the target begins some bytes after the source within its page, and that is
// what tensors and staging memory are like. A loop over vectors does not care.
//
// Streaming stores write whole lines to memory without reading them first and
// leave no copy in the cache. They are complete when the copy returns: whoever
// sees a later store of this thread sees them, as with plain ones.
#ifndef TFRING_CORE_COMMON_COPY_H_
#define TFRING_CORE_COMMON_COPY_H_

#include <cstdint>

namespace tfring {

enum class Stores : uint32_t { kPlain, kStreaming };

// The ranges must not overlap.
void CopyBytes(void* to, const void* from, uint64_t bytes,
               Stores stores = Stores::kPlain);

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_COPY_H_
