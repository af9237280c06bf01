#include "custom_ops/core/schedule/operation.h"

#include <cstring>

#include "custom_ops/core/common/dtype.h"
#include "custom_ops/core/common/hash.h"

namespace tfring {
namespace {

// Longer lists of tensors are cut in messages.
constexpr size_t kTensorsInMessages = 8;

uint64_t Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

const char* KindName(int32_t kind) {
  switch (kind) {
    case TFR_ALLREDUCE:
      return "allreduce";
    case TFR_ALLGATHER:
      return "allgather";
    case TFR_BROADCAST:
      return "broadcast";
    case TFR_BARRIER:
      return "barrier";
    default:
      return "unknown collective";
  }
}

Status Operation::Create(const tfr_request& request,
                         const GroupMembers& members,
                         std::unique_ptr<Operation>* out) {
  if (request.name == nullptr || request.name[0] == '\0') {
    return InvalidArgument("`name` of a collective must not be empty");
  }
  if (request.tensor_count < 0 ||
      (request.tensor_count > 0 && request.tensors == nullptr)) {
    return InvalidArgument(StrCat(
        "`tensor_count` must say how many `tensors` there are. Received: ",
        request.tensor_count));
  }
  std::unique_ptr<Operation> op(new Operation());
  op->name = request.name;
  op->kind = request.kind;
  op->reduce_op = request.kind == TFR_ALLREDUCE ? request.reduce_op : TFR_SUM;
  op->root = request.kind == TFR_BROADCAST ? request.root : 0;
  op->root_place = members.PlaceOf(op->root);
  op->prescale = request.kind == TFR_ALLREDUCE ? request.prescale : 1.0;
  op->postscale = request.kind == TFR_ALLREDUCE ? request.postscale : 1.0;
  op->allocate = request.allocate;
  op->done = request.done;
  op->user = request.user;
  op->done_user = request.user;
  op->tensors.reserve(static_cast<size_t>(request.tensor_count));
  for (int i = 0; i < request.tensor_count; ++i) {
    TFR_RETURN_IF_ERROR(op->CopyTensor(request.tensors[i], i));
  }
  TFR_RETURN_IF_ERROR(op->CheckKind(members));
  TFR_RETURN_IF_ERROR(op->CheckBuffers(members.rank));
  *out = std::move(op);
  return Status::Ok();
}

Status Operation::CopyTensor(const tfr_tensor& tensor, int index) {
  const size_t element = DtypeSize(tensor.dtype);
  if (element == 0) {
    return InvalidArgument(StrCat(Title(), ": tensor ", index,
                                  " has a dtype that is not supported (number ",
                                  tensor.dtype, ")"));
  }
  uint64_t count = 1;
  for (int d = 0; d < tensor.ndims; ++d) {
    if (tensor.dims[d] < 0 ||
        __builtin_mul_overflow(count, static_cast<uint64_t>(tensor.dims[d]),
                               &count)) {
      return InvalidArgument(StrCat(Title(), ": tensor ", index,
                                    " has a dimension that is negative or too "
                                    "large: ",
                                    tensor.dims[d]));
    }
  }
  OperationTensor copy;
  copy.input = static_cast<const char*>(tensor.input);
  copy.output = static_cast<char*>(tensor.output);
  copy.dtype = tensor.dtype;
  copy.first_dim = static_cast<int32_t>(dims.size());
  copy.ndims = tensor.ndims;
  copy.element_bytes = element;
  copy.count = count;
  if (__builtin_mul_overflow(count, element, &copy.bytes)) {
    return InvalidArgument(
        StrCat(Title(), ": tensor ", index, " is larger than 2^64 bytes"));
  }
  dims.insert(dims.end(), tensor.dims, tensor.dims + tensor.ndims);
  tensors.push_back(copy);
  return Status::Ok();
}

// Buffers that will be read or written must be there.
Status Operation::CheckBuffers(int place) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const OperationTensor& tensor = tensors[i];
    const bool reads = kind != TFR_BROADCAST || root_place == place;
    if (reads && tensor.input == nullptr && tensor.bytes > 0) {
      return InvalidArgument(
          StrCat(Title(), ": `input` of tensor ", i, " must not be null"));
    }
    const bool may_ask = kind == TFR_ALLGATHER && allocate != nullptr;
    const bool writes = kind == TFR_ALLGATHER || tensor.bytes > 0;
    if (writes && tensor.output == nullptr && !may_ask) {
      return InvalidArgument(
          StrCat(Title(), ": `output` of tensor ", i, " must not be null",
                 kind == TFR_ALLGATHER ? " without `allocate`" : ""));
    }
  }
  return Status::Ok();
}

Status Operation::CheckKind(const GroupMembers& members) const {
  switch (kind) {
    case TFR_ALLREDUCE:
      for (size_t i = 0; i < tensors.size(); ++i) {
        TFR_RETURN_IF_ERROR(CheckReduce(tensors[i], static_cast<int>(i)));
      }
      return Status::Ok();
    case TFR_ALLGATHER:
      for (const OperationTensor& tensor : tensors) {
        if (tensor.ndims == 0) {
          return InvalidArgument(
              StrCat(Title(),
                     ": a scalar cannot be gathered along its first dimension; "
                     "reshape it to shape (1,)"));
        }
      }
      return Status::Ok();
    case TFR_BROADCAST:
      if (root_place < 0) {
        return InvalidArgument(StrCat(Title(), ": `root_rank` must be ",
                                      RankChoice(members.ranks),
                                      ". Received: root_rank=", root));
      }
      return Status::Ok();
    case TFR_BARRIER:
      return Status::Ok();
    default:
      return InvalidArgument(
          StrCat("`kind` ", kind, " is not a collective this engine knows"));
  }
}

Status Operation::CheckReduce(const OperationTensor& tensor, int index) const {
  if (ReduceOpName(reduce_op) == nullptr) {
    return InvalidArgument(StrCat(
        Title(), ": `op` must be Average, Sum, Min, Max or Product. Received: ",
        reduce_op));
  }
  const bool is_bool = tensor.dtype == TFR_BOOL;
  if (is_bool && (reduce_op == TFR_SUM || reduce_op == TFR_AVERAGE)) {
    return InvalidArgument(
        StrCat(Title(), ": tensor ", index, " is bool, which has no ",
               ReduceOpName(reduce_op),
               "; use Min (all), Max (any) or cast it to an integer"));
  }
  if (is_bool && (prescale != 1.0 || postscale != 1.0)) {
    return InvalidArgument(
        StrCat(Title(), ": tensor ", index, " is bool and cannot be scaled"));
  }
  return Status::Ok();
}

std::string Operation::Title() const {
  return StrCat(KindName(kind), " '", name, "'");
}

std::string Operation::DescribeTensor(const OperationTensor& tensor) const {
  std::string text = StrCat(DtypeName(tensor.dtype), " (");
  for (int d = 0; d < tensor.ndims; ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(dims[static_cast<size_t>(tensor.first_dim + d)]);
  }
  return text + (tensor.ndims == 1 ? ",)" : ")");
}

std::string Operation::Describe() const {
  std::string text = KindName(kind);
  text += " of ";
  if (tensors.size() != 1) text += StrCat(tensors.size(), " tensors ");
  for (size_t i = 0; i < tensors.size() && i < kTensorsInMessages; ++i) {
    text += (i == 0 ? "" : ", ") + DescribeTensor(tensors[i]);
  }
  if (tensors.size() > kTensorsInMessages) text += ", ...";
  if (kind == TFR_ALLREDUCE) {
    text += StrCat(", op=", ReduceOpName(reduce_op));
    if (prescale != 1.0) text += StrCat(", prescale_factor=", prescale);
    if (postscale != 1.0) text += StrCat(", postscale_factor=", postscale);
  }
  if (kind == TFR_BROADCAST) text += StrCat(", root_rank=", root);
  return text;
}

uint64_t Operation::Digest() const {
  uint64_t hash = HashCombine(static_cast<uint64_t>(kind),
                              static_cast<uint64_t>(reduce_op));
  hash = HashCombine(hash, static_cast<uint64_t>(root));
  hash = HashCombine(hash, Bits(prescale));
  hash = HashCombine(hash, Bits(postscale));
  for (const OperationTensor& tensor : tensors) {
    hash = HashCombine(hash, static_cast<uint64_t>(tensor.dtype));
    hash = HashCombine(hash, static_cast<uint64_t>(tensor.ndims));
    for (int d = kind == TFR_ALLGATHER ? 1 : 0; d < tensor.ndims; ++d) {
      const int64_t dim = dims[static_cast<size_t>(tensor.first_dim + d)];
      hash = HashCombine(hash, static_cast<uint64_t>(dim));
    }
  }
  return hash;
}

uint64_t Operation::InputBytes() const {
  uint64_t bytes = 0;
  for (const OperationTensor& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

}  // namespace tfring
