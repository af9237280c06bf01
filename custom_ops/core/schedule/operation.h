// One collective as this rank submitted it: a checked copy of tfr_request.
#ifndef TFRING_CORE_SCHEDULE_OPERATION_H_
#define TFRING_CORE_SCHEDULE_OPERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/tfring.h"

namespace tfring {

struct OperationTensor {
  const char* input;
  char* output;  // nullptr: ask allocate()
  int32_t dtype;
  int32_t first_dim;  // index of this tensor's dims in Operation::dims
  int32_t ndims;
  uint64_t element_bytes;
  uint64_t count;        // elements of the input
  uint64_t bytes;        // of the input
  int32_t staged_dtype;  // how ranks show it to each other; else `dtype`
  uint64_t staged_element_bytes;

  uint64_t staged_bytes() const { return count * staged_element_bytes; }
  bool is_narrowed() const { return staged_dtype != dtype; }
};

class DataPlane;

// Collectives of the engine's own, beyond those of tfr_kind.
constexpr int32_t kAddProcessSet = TFR_ADD_PROCESS_SET;
constexpr int32_t kRemoveProcessSet = TFR_REMOVE_PROCESS_SET;

class Operation {
 public:
  // INVALID_ARGUMENT only where no peer can be meant: no name, unknown kind.
  // Other arguments that break a rule make an operation with a `fault`. One in
  // `*out` is used again.
  static Status Create(const tfr_request& request, const GroupMembers& members,
                       std::unique_ptr<Operation>* out);

  // One of the engine's own; `run` is called once all ranks have one with equal
  // `values`. All of these pair with each other in the order submitted.
  static std::unique_ptr<Operation> Own(int32_t kind,
                                        std::vector<int64_t> values,
                                        std::function<Status(DataPlane*)> run);

  // That of a rank that has joined, where all ranks must say something.
  static std::unique_ptr<Operation> Join();

  // What a rank that has joined must know to help with this operation: all but
  // names and buffers. Empty unless it is an allreduce.
  std::string EncodeReduction() const;
  static std::unique_ptr<Operation> DecodeReduction(const std::string& text);

  Operation(const Operation&) = default;

  // Its arguments are wrong, as `text` says: all ranks are told.
  void SetFault(const std::string& text) {
    fault = text;
    tensors.clear();
    dims.clear();
    splits.clear();
    device = 0;
    ready.reset();
  }

  // "allreduce 'name'", for messages.
  std::string Title() const;
  // What all ranks must have alike, for people: "float32 (3,), op=Sum".
  std::string Describe() const;
  // The same as a number. The first dimension may differ where rows are what
  // is gathered or sent. That of a fault differs from all others.
  uint64_t Digest() const;
  uint64_t InputBytes() const;
  uint64_t TravelBytes() const;  // the same as they travel between ranks
  // The first dimension of a tensor that is not a scalar.
  int64_t Rows(const OperationTensor& tensor) const {
    return dims[static_cast<size_t>(tensor.first_dim)];
  }
  // Bytes of one of them.
  uint64_t RowBytes(const OperationTensor& tensor) const;

  std::string name;
  int32_t kind;
  int32_t reduce_op = TFR_SUM;
  int32_t root = 0;        // rank, as people know it
  int32_t root_place = 0;  // in the group
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t wire_dtype = 0;  // 0: the tensors' own
  std::vector<OperationTensor> tensors;
  std::vector<int64_t> dims;
  std::vector<int64_t> splits;  // alltoall: rows, [tensor][rank]
  int64_t* counts = nullptr;    // may be null
  std::string fault;       // what is wrong with the arguments; then no tensors
  int32_t device = 0;      // where tensors are; see tfr_request
  void* stream = nullptr;  // ... and the caller's stream there
  // An event of the device plane's in that stream, which gets it back with the
  // last copy of this.
  std::shared_ptr<void> ready;
  tfr_allocate allocate = nullptr;
  tfr_done done = nullptr;
  void* user = nullptr;       // of allocate
  void* done_user = nullptr;  // of done
  int32_t patience = TFR_HAND_OVER;
  std::vector<int64_t> values;            // of one of the engine's own
  std::function<Status(DataPlane*)> run;  // ... and what it does

  uint64_t uid = 0;  // of this use of this name; same on all ranks
  int64_t submitted_ns = 0;
  bool warned = false;    // of the stall
  bool reported = false;  // that it failed

 private:
  Operation() = default;
  Operation(Operation&&) = default;
  Operation& operator=(Operation&&) = default;
  void Clear();
  // These return what is wrong.
  Status Fill(const tfr_request& request, const GroupMembers& members);
  Status CopyTensor(const tfr_tensor& tensor, int index);
  // The dtype and what follows from it.
  void SetDtype(int32_t dtype, OperationTensor* tensor) const;
  Status CopySplits(const int64_t* splits, size_t size);
  Status CheckSplits(size_t tensor, size_t size) const;
  Status CheckKind(const GroupMembers& members) const;
  Status CheckReduce(int size) const;
  Status CheckWire() const;
  Status CheckReducedTensor(size_t index) const;
  Status CheckNoScalars(const char* verb) const;
  Status CheckBuffers(int place) const;
  bool Reduces() const {
    return kind == TFR_ALLREDUCE || kind == TFR_REDUCESCATTER;
  }
  // Is the size of outputs known only when all ranks have told theirs?
  bool OutputsMayBeAsked() const;
  bool RowsMayDiffer() const;
  std::string DescribeTensor(const OperationTensor& tensor) const;

  int place_ = 0;  // in the group
};

const char* KindName(int32_t kind);

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_OPERATION_H_
