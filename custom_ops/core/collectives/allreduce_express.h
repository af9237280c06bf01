// An allreduce so small that its data travels with the announcement
// (schedule/express.h): the same elements, staged and reduced in the same order
// as by allreduce.h, so with the same bits.
#ifndef TFRING_CORE_COLLECTIVES_ALLREDUCE_EXPRESS_H_
#define TFRING_CORE_COLLECTIVES_ALLREDUCE_EXPRESS_H_

#include <cstdint>

#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// Whether it is an allreduce of at most `most` staged bytes, padding included.
bool FitsExpress(const Operation& operation, uint64_t most);
// Writes this rank's elements.
void StageExpress(const Operation& operation, char* staged);
// Reduces what the ranks have staged, in their order.
void ReduceExpress(const Operation& operation, const char* const* staged,
                   int ranks);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLREDUCE_EXPRESS_H_
