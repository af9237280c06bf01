#include "custom_ops/core/schedule/operation.h"

#include <cstring>
#include <utility>

#include "custom_ops/core/common/dtype.h"
#include "custom_ops/core/common/hash.h"
#include "custom_ops/core/common/wire.h"

namespace tfring {
namespace {

// A name that no caller gives: those of callers end at a null byte.
constexpr char kOwnName[] = "own\0";

// Longer lists of tensors are cut in messages.
constexpr size_t kTensorsInMessages = 8;

uint64_t Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double OfBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool IsOwn(int32_t kind) {
  return kind == kAddProcessSet || kind == kRemoveProcessSet;
}

// Of the engine's own, only that their arguments are wrong can be requested.
bool IsKnown(const tfr_request& request) {
  if (IsOwn(request.kind)) return request.fault != nullptr;
  return request.kind >= TFR_ALLREDUCE && request.kind <= TFR_JOIN;
}

std::string DtypeText(int32_t dtype) {
  const char* name = DtypeName(dtype);
  return name == nullptr ? StrCat("dtype number ", dtype) : name;
}

std::string OpText(int32_t op) {
  const char* name = ReduceOpName(op);
  return name == nullptr ? std::to_string(op) : name;
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
    case TFR_REDUCESCATTER:
      return "reducescatter";
    case TFR_ALLTOALL:
      return "alltoall";
    case TFR_JOIN:
      return "join";
    case kAddProcessSet:
      return "add_process_set";
    case kRemoveProcessSet:
      return "remove_process_set";
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
  if (!IsKnown(request)) {
    return InvalidArgument(StrCat("`kind` ", request.kind,
                                  " is not a collective this engine knows"));
  }
  std::unique_ptr<Operation> op = std::move(*out);
  if (op == nullptr) {
    op.reset(new Operation());
  } else {
    op->Clear();
  }
  op->name = request.name;
  if (IsOwn(request.kind)) op->name.assign(kOwnName, sizeof(kOwnName));
  op->kind = request.kind;
  op->reduce_op = op->Reduces() ? request.reduce_op : TFR_SUM;
  op->root = request.kind == TFR_BROADCAST ? request.root : 0;
  op->root_place = members.PlaceOf(op->root);
  op->prescale = op->Reduces() ? request.prescale : 1.0;
  op->postscale = op->Reduces() ? request.postscale : 1.0;
  op->wire_dtype = request.wire_dtype;
  op->counts = request.counts;
  op->allocate = request.allocate;
  op->done = request.done;
  op->user = request.user;
  op->done_user = request.user;
  op->patience = request.patience;
  op->place_ = members.rank;
  const Status filled = op->Fill(request, members);
  if (!filled.ok()) op->SetFault(filled.message());
  op->stream = request.stream;
  if (!op->tensors.empty()) op->device = request.device;
  *out = std::move(op);
  return Status::Ok();
}

void Operation::Clear() {
  Operation blank;
  const auto keep_room = [](auto* kept, auto* in_use) {
    in_use->clear();
    kept->swap(*in_use);
  };
  keep_room(&blank.name, &name);
  keep_room(&blank.tensors, &tensors);
  keep_room(&blank.dims, &dims);
  *this = std::move(blank);
}

std::unique_ptr<Operation> Operation::Own(
    int32_t kind, std::vector<int64_t> values,
    std::function<Status(DataPlane*)> run) {
  std::unique_ptr<Operation> op(new Operation());
  op->name.assign(kOwnName, sizeof(kOwnName));
  op->kind = kind;
  op->values = std::move(values);
  op->run = std::move(run);
  return op;
}

std::unique_ptr<Operation> Operation::Join() {
  std::unique_ptr<Operation> op(new Operation());
  op->kind = TFR_JOIN;
  return op;
}

std::string Operation::EncodeReduction() const {
  std::string text;
  if (kind != TFR_ALLREDUCE) return text;
  AppendInt(reduce_op, &text);
  AppendInt(Bits(prescale), &text);
  AppendInt(Bits(postscale), &text);
  AppendInt(wire_dtype, &text);
  for (const OperationTensor& tensor : tensors) {
    AppendInt(tensor.dtype, &text);
    AppendInt(tensor.count, &text);
  }
  return text;
}

std::unique_ptr<Operation> Operation::DecodeReduction(const std::string& text) {
  std::unique_ptr<Operation> op(new Operation());
  op->kind = TFR_ALLREDUCE;
  op->reduce_op = ReadInt<int32_t>(text.data());
  op->prescale = OfBits(ReadInt<uint64_t>(text.data() + 4));
  op->postscale = OfBits(ReadInt<uint64_t>(text.data() + 12));
  op->wire_dtype = ReadInt<int32_t>(text.data() + 20);
  for (size_t at = 24; at < text.size(); at += 12) {
    OperationTensor tensor = {};
    op->SetDtype(ReadInt<int32_t>(text.data() + at), &tensor);
    tensor.count = ReadInt<uint64_t>(text.data() + at + 4);
    tensor.bytes = tensor.count * tensor.element_bytes;
    op->tensors.push_back(tensor);
  }
  return op;
}

Status Operation::Fill(const tfr_request& request,
                       const GroupMembers& members) {
  if (request.fault != nullptr) {
    return InvalidArgument(request.fault[0] == '\0' ? "its arguments are wrong"
                                                    : request.fault);
  }
  if (request.tensor_count < 0 ||
      (request.tensor_count > 0 && request.tensors == nullptr)) {
    return InvalidArgument(StrCat(
        "`tensor_count` must say how many `tensors` there are. Received: ",
        request.tensor_count));
  }
  if (request.device < 0) {
    return InvalidArgument(
        StrCat("`device` must be 0 for host memory or the number of a CUDA "
               "device plus 1. Received: device=",
               request.device));
  }
  TFR_RETURN_IF_ERROR(CheckWire());
  tensors.reserve(static_cast<size_t>(request.tensor_count));
  for (int i = 0; i < request.tensor_count; ++i) {
    TFR_RETURN_IF_ERROR(CopyTensor(request.tensors[i], i));
  }
  TFR_RETURN_IF_ERROR(CheckKind(members));
  if (kind == TFR_ALLTOALL) {
    TFR_RETURN_IF_ERROR(
        CopySplits(request.splits, static_cast<size_t>(members.size)));
  }
  return CheckBuffers(members.rank);
}

Status Operation::CopyTensor(const tfr_tensor& tensor, int index) {
  const size_t element = DtypeSize(tensor.dtype);
  if (element == 0) {
    return InvalidArgument(StrCat("tensor ", index,
                                  " has a dtype that is not supported (number ",
                                  tensor.dtype, ")"));
  }
  uint64_t count = 1;
  for (int d = 0; d < tensor.ndims; ++d) {
    if (tensor.dims[d] < 0 ||
        __builtin_mul_overflow(count, static_cast<uint64_t>(tensor.dims[d]),
                               &count)) {
      return InvalidArgument(StrCat("tensor ", index,
                                    " has a dimension that is negative or too "
                                    "large: ",
                                    tensor.dims[d]));
    }
  }
  OperationTensor copy;
  copy.input = static_cast<const char*>(tensor.input);
  copy.output = static_cast<char*>(tensor.output);
  SetDtype(tensor.dtype, &copy);
  copy.first_dim = static_cast<int32_t>(dims.size());
  copy.ndims = tensor.ndims;
  copy.count = count;
  if (__builtin_mul_overflow(count, element, &copy.bytes)) {
    return InvalidArgument(
        StrCat("tensor ", index, " is larger than 2^64 bytes"));
  }
  dims.insert(dims.end(), tensor.dims, tensor.dims + tensor.ndims);
  tensors.push_back(copy);
  return Status::Ok();
}

void Operation::SetDtype(int32_t dtype, OperationTensor* tensor) const {
  tensor->dtype = dtype;
  tensor->element_bytes = DtypeSize(dtype);
  const bool narrowed = IsFloating(dtype) && wire_dtype != 0 &&
                        tensor->element_bytes > DtypeSize(wire_dtype);
  tensor->staged_dtype = narrowed ? wire_dtype : dtype;
  tensor->staged_element_bytes = DtypeSize(tensor->staged_dtype);
}

Status Operation::CopySplits(const int64_t* given, size_t size) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t rows = Rows(tensors[t]);
    const auto ranks = static_cast<int64_t>(size);
    if (given == nullptr && rows % ranks != 0) {
      return InvalidArgument(StrCat(
          "without `splits` the first dimension must be a multiple of the ",
          size, " ranks. Received: tensor ", t, " of shape ",
          DescribeTensor(tensors[t])));
    }
    for (size_t r = 0; r < size; ++r) {
      splits.push_back(given == nullptr ? rows / ranks : given[t * size + r]);
    }
    TFR_RETURN_IF_ERROR(CheckSplits(t, size));
  }
  return Status::Ok();
}

Status Operation::CheckSplits(size_t tensor, size_t size) const {
  const int64_t rows = Rows(tensors[tensor]);
  std::string list;
  int64_t sum = 0;
  bool fits = true;
  for (size_t r = 0; r < size; ++r) {
    const int64_t split = splits[tensor * size + r];
    list += (r == 0 ? "" : ", ") + std::to_string(split);
    fits = fits && split >= 0 && !__builtin_add_overflow(sum, split, &sum);
  }
  if (fits && sum <= rows) return Status::Ok();
  return InvalidArgument(
      StrCat("`splits` must not be negative and must add up to at most the "
             "first dimension. Received: splits=[",
             list, "], first dimension ", rows));
}

// Buffers that will be read or written must be there.
Status Operation::CheckBuffers(int place) const {
  const bool may_ask = OutputsMayBeAsked();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const OperationTensor& tensor = tensors[i];
    const bool reads = kind != TFR_BROADCAST || root_place == place;
    if (reads && tensor.input == nullptr && tensor.bytes > 0) {
      return InvalidArgument(
          StrCat("`input` of tensor ", i, " must not be null"));
    }
    const bool writes = may_ask || tensor.bytes > 0;
    const bool asks = may_ask && allocate != nullptr;
    if (writes && tensor.output == nullptr && !asks) {
      return InvalidArgument(StrCat("`output` of tensor ", i,
                                    " must not be null",
                                    may_ask ? " without `allocate`" : ""));
    }
  }
  return Status::Ok();
}

bool Operation::OutputsMayBeAsked() const {
  return kind == TFR_ALLGATHER || kind == TFR_ALLTOALL ||
         kind == TFR_REDUCESCATTER;
}

bool Operation::RowsMayDiffer() const {
  return kind == TFR_ALLGATHER || kind == TFR_ALLTOALL;
}

Status Operation::CheckKind(const GroupMembers& members) const {
  switch (kind) {
    case TFR_ALLREDUCE:
      return CheckReduce(members.size);
    case TFR_REDUCESCATTER:
      TFR_RETURN_IF_ERROR(CheckNoScalars("split"));
      return CheckReduce(members.size);
    case TFR_ALLGATHER:
      return CheckNoScalars("gathered");
    case TFR_ALLTOALL:
      return CheckNoScalars("split");
    case TFR_BROADCAST:
      if (root_place < 0) {
        return InvalidArgument(StrCat("`root_rank` must be ",
                                      RankChoice(members.ranks),
                                      ". Received: root_rank=", root));
      }
      return Status::Ok();
    default:
      return Status::Ok();
  }
}

Status Operation::CheckNoScalars(const char* verb) const {
  for (const OperationTensor& tensor : tensors) {
    if (tensor.ndims > 0) continue;
    return InvalidArgument(StrCat("a scalar cannot be ", verb,
                                  " along its first dimension; reshape it to "
                                  "shape (1,)"));
  }
  return Status::Ok();
}

Status Operation::CheckReduce(int size) const {
  const bool any = kind == TFR_ALLREDUCE;
  const bool sums = reduce_op == TFR_SUM || reduce_op == TFR_AVERAGE;
  if (ReduceOpName(reduce_op) == nullptr || (!any && !sums)) {
    return InvalidArgument(StrCat(
        "`op` must be ",
        any ? "Average, Sum, Adasum, Min, Max or Product" : "Average or Sum",
        ". Received: ", OpText(reduce_op)));
  }
  if (reduce_op == TFR_ADASUM && (size & (size - 1)) != 0) {
    return InvalidArgument(
        StrCat("`op` Adasum needs a number of ranks that is a power of two. "
               "Received: ",
               size, " ranks"));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    TFR_RETURN_IF_ERROR(CheckReducedTensor(i));
  }
  return Status::Ok();
}

Status Operation::CheckWire() const {
  if (wire_dtype == 0) return Status::Ok();
  if (wire_dtype != TFR_FLOAT16 && wire_dtype != TFR_BFLOAT16) {
    return InvalidArgument(
        StrCat("`wire_dtype` must be float16, bfloat16 or 0 for the tensors' "
               "own. Received: ",
               DtypeText(wire_dtype)));
  }
  if (kind == TFR_ALLREDUCE && reduce_op != TFR_ADASUM) return Status::Ok();
  return InvalidArgument(StrCat(
      "`wire_dtype` is for allreduce with Average, Sum, Min, Max or Product; "
      "cast the tensors instead. Received: wire_dtype=",
      DtypeText(wire_dtype), " for ", KindName(kind),
      kind == TFR_ALLREDUCE ? " with Adasum" : ""));
}

Status Operation::CheckReducedTensor(size_t index) const {
  const int32_t dtype = tensors[index].dtype;
  if (reduce_op == TFR_ADASUM && !IsFloating(dtype)) {
    return InvalidArgument(StrCat("tensor ", index, " is ", DtypeName(dtype),
                                  ", but Adasum is defined for floating "
                                  "point only; use Sum or Average"));
  }
  const bool is_bool = dtype == TFR_BOOL;
  if (is_bool && (reduce_op == TFR_SUM || reduce_op == TFR_AVERAGE)) {
    return InvalidArgument(StrCat(
        "tensor ", index, " is bool, which has no ", ReduceOpName(reduce_op),
        "; use Min (all), Max (any) or cast it to an integer"));
  }
  if (is_bool && (prescale != 1.0 || postscale != 1.0)) {
    return InvalidArgument(
        StrCat("tensor ", index, " is bool and cannot be scaled"));
  }
  return Status::Ok();
}

std::string Operation::Title() const {
  if (run || kind == TFR_JOIN) return KindName(kind);
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
  if (kind == kAddProcessSet) {
    return text + " of " + RankList({values.begin(), values.end()});
  }
  if (kind == TFR_JOIN) return text;
  if (kind == kRemoveProcessSet) return StrCat(text, " of set ", values[0]);
  text += " of ";
  if (tensors.size() != 1) text += StrCat(tensors.size(), " tensors ");
  for (size_t i = 0; i < tensors.size() && i < kTensorsInMessages; ++i) {
    text += (i == 0 ? "" : ", ") + DescribeTensor(tensors[i]);
  }
  if (tensors.size() > kTensorsInMessages) text += ", ...";
  if (Reduces()) {
    text += StrCat(", op=", ReduceOpName(reduce_op));
    if (prescale != 1.0) text += StrCat(", prescale_factor=", prescale);
    if (postscale != 1.0) text += StrCat(", postscale_factor=", postscale);
    if (wire_dtype != 0) text += ", wire=" + DtypeText(wire_dtype);
  }
  if (kind == TFR_BROADCAST) text += StrCat(", root_rank=", root);
  if (device > 0) text += ", on a GPU";
  return text;
}

uint64_t Operation::Digest() const {
  if (!fault.empty()) {
    // Of this rank only, so that it meets no equal one.
    return HashCombine(HashBytes("fault", 5), static_cast<uint64_t>(place_));
  }
  uint64_t hash = HashCombine(static_cast<uint64_t>(kind),
                              static_cast<uint64_t>(reduce_op));
  hash = HashCombine(hash, static_cast<uint64_t>(root));
  hash = HashCombine(hash, Bits(prescale));
  hash = HashCombine(hash, Bits(postscale));
  hash = HashCombine(hash, static_cast<uint64_t>(wire_dtype));
  // Which GPU is each rank's own affair.
  hash = HashCombine(hash, device > 0 ? 1 : 0);
  for (const OperationTensor& tensor : tensors) {
    hash = HashCombine(hash, static_cast<uint64_t>(tensor.dtype));
    hash = HashCombine(hash, static_cast<uint64_t>(tensor.ndims));
    for (int d = RowsMayDiffer() ? 1 : 0; d < tensor.ndims; ++d) {
      const int64_t dim = dims[static_cast<size_t>(tensor.first_dim + d)];
      hash = HashCombine(hash, static_cast<uint64_t>(dim));
    }
  }
  for (const int64_t value : values) {
    hash = HashCombine(hash, static_cast<uint64_t>(value));
  }
  return hash;
}

uint64_t Operation::RowBytes(const OperationTensor& tensor) const {
  uint64_t bytes = tensor.element_bytes;
  for (int d = 1; d < tensor.ndims; ++d) {
    bytes *=
        static_cast<uint64_t>(dims[static_cast<size_t>(tensor.first_dim + d)]);
  }
  return bytes;
}

uint64_t Operation::InputBytes() const {
  uint64_t bytes = 0;
  for (const OperationTensor& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

uint64_t Operation::TravelBytes() const {
  uint64_t bytes = 0;
  for (const OperationTensor& tensor : tensors) bytes += tensor.staged_bytes();
  return bytes;
}

}  // namespace tfring
