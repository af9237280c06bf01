// One collective as this rank submitted it: a checked copy of tfr_request.
#ifndef TFRING_CORE_SCHEDULE_OPERATION_H_
#define TFRING_CORE_SCHEDULE_OPERATION_H_

#include <cstdint>
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
  uint64_t count;  // elements of the input
  uint64_t bytes;  // of the input
};

class Operation {
 public:
  // INVALID_ARGUMENT names the field that breaks a rule.
  static Status Create(const tfr_request& request, const GroupMembers& members,
                       std::unique_ptr<Operation>* out);

  // "allreduce 'name'", for messages.
  std::string Title() const;
  // What all ranks must have alike, for people: "float32 (3,), op=Sum".
  std::string Describe() const;
  // The same as a number. The first dimension of allgather may differ.
  uint64_t Digest() const;
  uint64_t InputBytes() const;

  std::string name;
  int32_t kind;
  int32_t reduce_op;
  int32_t root;        // rank, as people know it
  int32_t root_place;  // in the group
  double prescale;
  double postscale;
  std::vector<OperationTensor> tensors;
  std::vector<int64_t> dims;
  tfr_allocate allocate;
  tfr_done done;
  void* user;       // of allocate
  void* done_user;  // of done

  uint64_t uid = 0;  // of this use of this name; same on all ranks
  int64_t submitted_ns = 0;
  bool warned = false;    // of the stall
  bool reported = false;  // that it failed

 private:
  Operation() = default;
  Status CopyTensor(const tfr_tensor& tensor, int index);
  Status CheckKind(const GroupMembers& members) const;
  Status CheckBuffers(int place) const;
  Status CheckReduce(const OperationTensor& tensor, int index) const;
  std::string DescribeTensor(const OperationTensor& tensor) const;
};

const char* KindName(int32_t kind);

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_OPERATION_H_
