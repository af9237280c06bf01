// Outputs whose size is known only when the ranks have met.
#ifndef TFRING_CORE_COLLECTIVES_OUTPUTS_H_
#define TFRING_CORE_COLLECTIVES_OUTPUTS_H_

#include <cstddef>
#include <cstdint>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// `*output` = where `rows` rows of tensor `index` go: the request's output, or
// one that its allocate() gives. After an error the rank must still take part,
// or the others would wait for it.
Status OutputOf(const Operation& operation, size_t index, uint64_t rows,
                char** output);

// `*sum` += rows. Rows of no bytes can be too many to count.
Status AddRows(const Operation& operation, size_t index, uint64_t rows,
               uint64_t* sum);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_OUTPUTS_H_
