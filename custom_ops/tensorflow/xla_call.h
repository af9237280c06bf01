// What a custom call of XLA is told by its first operand, a line of text that
// tfring/_xla_module.py writes and that ends with a zero byte. (Not by its
// backend_config: passes of XLA, in TensorFlow 2.16 for one, read that as
// JSON.)
//
//   size kind process_set reduce_op root prescale postscale wire_dtype
//   ranks place tensors
//   then for each tensor: dtype ndims dim...   (-1: see XlaCall::dims_operand)
//   and at last the name, two hexadecimal digits for each byte.
//
// `size`: of the line, kXlaSizeDigits digits, so that it can be fetched from a
// device. Zeros follow up to kXlaLeastBytes, which are fetched at once. Factors
// are float64 bit patterns.
#ifndef TFRING_TENSORFLOW_XLA_CALL_H_
#define TFRING_TENSORFLOW_XLA_CALL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/tfring.h"
#include "custom_ops/tensorflow/request.h"
#include "custom_ops/tensorflow/xla_memory.h"

namespace tfring {

constexpr size_t kXlaSizeDigits = 8;
constexpr size_t kXlaLeastBytes = 256;

// Kinds that are no collectives.
constexpr int32_t kXlaProbe = 1000;       // succeeds
constexpr int32_t kXlaProbeFails = 1001;  // fails as if a peer were lost
constexpr int32_t kXlaCheck = 1002;       // fails if its float32s end above 0
constexpr int32_t kXlaFirstQuery = 1100;  // plus a question of query.h

struct XlaTensor {
  int32_t dtype = 0;
  std::vector<int64_t> dims;

  size_t bytes(int64_t rows) const;  // with that many rows
  size_t bytes() const { return bytes(dims.empty() ? 1 : dims[0]); }
};

struct XlaCall : CollectiveArguments {
  std::vector<XlaTensor> tensors;
  // The process set that results were compiled for: how many ranks, and which
  // of them this is. No ranks: it does not matter.
  int32_t ranks = 0;
  int32_t place = 0;
  // Some dimensions were not known when the program was traced: the operand
  // after the token holds all of them, as int32.
  bool dims_operand = false;

  // False: no such line.
  bool Parse(const char* text, size_t size);
  // Takes over the dimensions from the operand.
  void SetDims(const int32_t* dims);
  size_t dim_count() const;
};

// Results of a call: one per tensor, a query has one, too.
inline size_t XlaResults(const XlaCall& call) {
  return call.kind >= kXlaFirstQuery ? 1 : call.tensors.size();
}

// Operands and results, and where they are.
struct XlaBuffers {
  std::vector<const void*> inputs;  // one per tensor
  std::vector<void*> outputs;       // one per result
  XlaMemory memory;
};

// Runs the call and waits for it. Returns a tfr_code; `*text` is the reason.
int RunXlaCall(const XlaCall& call, const XlaBuffers& buffers,
               std::string* text);

// `text` with a mark by which tfring/_xla_errors.py knows the class of error.
std::string MarkedError(int code, const std::string& text);

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_XLA_CALL_H_
