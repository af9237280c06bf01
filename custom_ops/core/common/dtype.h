// Element types of the engine: their sizes and names.
#ifndef TFRING_CORE_COMMON_DTYPE_H_
#define TFRING_CORE_COMMON_DTYPE_H_

#include <cstddef>
#include <cstdint>

namespace tfring {

// Bytes of one element; 0 for a number that is not a tfr_dtype.
size_t DtypeSize(int32_t dtype);
// "float32", ...; "dtype 42" style numbers are left to the caller (nullptr).
const char* DtypeName(int32_t dtype);
bool IsFloating(int32_t dtype);
// "Sum", ...; nullptr for a number that is not a tfr_reduce_op.
const char* ReduceOpName(int32_t op);

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_DTYPE_H_
