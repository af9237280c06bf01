#include "custom_ops/core/nccl/nccl_calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/collectives/outputs.h"
#include "custom_ops/core/common/dtype.h"

namespace tfring {
namespace {

// Bytes that only travel.
constexpr int kByte = kNcclInt8;

using Table = std::vector<std::vector<uint64_t>>;

// All ranks' numbers, `each` per rank: (*all)[place].
Status GatherNumbers(DataPlane* plane, const std::vector<uint64_t>& mine,
                     Table* all) {
  const size_t bytes = mine.size() * sizeof(uint64_t);
  all->assign(static_cast<size_t>(plane->members().size), mine);
  if (bytes == 0) return Status::Ok();
  std::string text;
  TFR_RETURN_IF_ERROR(GatherSmall(
      plane, std::string(reinterpret_cast<const char*>(mine.data()), bytes),
      &text));
  for (size_t place = 0; place < all->size(); ++place) {
    std::memcpy((*all)[place].data(), text.data() + place * bytes, bytes);
  }
  return Status::Ok();
}

// A rank that got no memory must not leave the others waiting in NCCL.
Status AgreeOn(DataPlane* plane, const Status& mine) {
  Table words;
  TFR_RETURN_IF_ERROR(GatherNumbers(plane, {mine.ok() ? 0u : 1u}, &words));
  TFR_RETURN_IF_ERROR(mine);
  for (size_t place = 0; place < words.size(); ++place) {
    if (words[place][0] == 0) continue;
    return ResourceExhausted(
        StrCat("rank ", plane->members().RankAt(static_cast<int>(place)),
               " has no memory for its output"));
  }
  return Status::Ok();
}

// Outputs of `rows[t]` rows.
Status AskForOutputs(const Operation& operation,
                     const std::vector<uint64_t>& rows,
                     std::vector<char*>* outputs) {
  outputs->assign(rows.size(), nullptr);
  for (size_t t = 0; t < rows.size(); ++t) {
    TFR_RETURN_IF_ERROR(OutputOf(operation, t, rows[t], &(*outputs)[t]));
  }
  return Status::Ok();
}

bool FitsDtype(int32_t dtype, double factor) {
  const double size = std::fabs(factor);
  if (dtype == TFR_FLOAT16) return size >= 0x1p-14 && size <= 65504.0;
  if (dtype == TFR_FLOAT64) return std::isfinite(factor);
  return size >= static_cast<double>(std::numeric_limits<float>::min()) &&
         size <= static_cast<double>(std::numeric_limits<float>::max());
}

bool TakesReduced(const OperationTensor& tensor, int32_t op, double factor,
                  bool scales) {
  if (NcclDtype(tensor.dtype) < 0 || tensor.is_narrowed()) return false;
  if (factor == 1.0) return true;
  const bool sums = op == TFR_SUM || op == TFR_AVERAGE;
  return scales && sums && IsFloating(tensor.dtype) &&
         FitsDtype(tensor.dtype, factor);
}

// The first of `rows` rows that belongs to `place`, as reducescatter.cc has it.
uint64_t FirstRow(uint64_t rows, uint64_t place, uint64_t size) {
  return rows / size * place + std::min(place, rows % size);
}

// Calls f(t) for tensors, until one fails.
template <typename F>
int ForTensors(size_t count, F&& f) {
  int result = kNcclSuccess;
  for (size_t t = 0; t < count && !NcclFailed(result); ++t) result = f(t);
  return result;
}

void PlanAllreduce(const Operation& operation, NcclCalls* calls) {
  calls->issue = [&operation](const NcclApi& nccl, const std::vector<int>& ops,
                              NcclComm comm, CudaStream stream) {
    return ForTensors(ops.size(), [&](size_t t) {
      const OperationTensor& tensor = operation.tensors[t];
      if (tensor.count == 0) return kNcclSuccess;
      return nccl.AllReduce(tensor.input, tensor.output, tensor.count,
                            NcclDtype(tensor.dtype), ops[t], comm, stream);
    });
  };
}

void PlanBroadcast(const Operation& operation, NcclCalls* calls) {
  calls->issue = [&operation](const NcclApi& nccl, const std::vector<int>&,
                              NcclComm comm, CudaStream stream) {
    return ForTensors(operation.tensors.size(), [&](size_t t) {
      const OperationTensor& tensor = operation.tensors[t];
      if (tensor.bytes == 0) return kNcclSuccess;
      const char* from = tensor.input == nullptr ? tensor.output : tensor.input;
      return nccl.Broadcast(from, tensor.output, tensor.bytes, kByte,
                            operation.root_place, comm, stream);
    });
  };
}

// One tensor of an allgather; bytes of each rank.
int GatherOne(const NcclApi& nccl, const OperationTensor& tensor, char* output,
              const std::vector<uint64_t>& bytes, NcclComm comm,
              CudaStream stream) {
  if (std::adjacent_find(bytes.begin(), bytes.end(),
                         std::not_equal_to<uint64_t>()) == bytes.end()) {
    if (bytes[0] == 0) return kNcclSuccess;
    return nccl.AllGather(tensor.input, output, bytes[0], kByte, comm, stream);
  }
  int result = kNcclSuccess;
  for (size_t r = 0; r < bytes.size() && !NcclFailed(result); ++r) {
    if (bytes[r] > 0) {
      result = nccl.Broadcast(tensor.input, output, bytes[r], kByte,
                              static_cast<int>(r), comm, stream);
    }
    output += bytes[r];
  }
  return result;
}

Status PlanAllgather(DataPlane* plane, const Operation& operation,
                     NcclCalls* calls) {
  const size_t tensors = operation.tensors.size();
  std::vector<uint64_t> mine;
  for (const OperationTensor& tensor : operation.tensors) {
    mine.push_back(static_cast<uint64_t>(operation.Rows(tensor)));
  }
  Table rows;
  TFR_RETURN_IF_ERROR(GatherNumbers(plane, mine, &rows));
  std::vector<uint64_t> sums(tensors);
  Table bytes(tensors);  // [tensor][place]
  for (size_t t = 0; t < tensors; ++t) {
    for (const std::vector<uint64_t>& of : rows) {
      TFR_RETURN_IF_ERROR(AddRows(operation, t, of[t], &sums[t]));
      bytes[t].push_back(of[t] * operation.RowBytes(operation.tensors[t]));
    }
  }
  std::vector<char*> outputs;
  const Status asked = AskForOutputs(operation, sums, &outputs);
  TFR_RETURN_IF_ERROR(AgreeOn(plane, asked));
  calls->allocated = true;
  calls->issue = [&operation, outputs = std::move(outputs),
                  bytes = std::move(bytes)](const NcclApi& nccl,
                                            const std::vector<int>&,
                                            NcclComm comm, CudaStream stream) {
    return ForTensors(bytes.size(), [&](size_t t) {
      return GatherOne(nccl, operation.tensors[t], outputs[t], bytes[t], comm,
                       stream);
    });
  };
  return Status::Ok();
}

// One tensor of a reducescatter.
int ScatterOne(const NcclApi& nccl, const Operation& operation, size_t t,
               char* output, int op, uint64_t size, NcclComm comm,
               CudaStream stream) {
  const OperationTensor& tensor = operation.tensors[t];
  const int dtype = NcclDtype(tensor.dtype);
  const auto rows = static_cast<uint64_t>(operation.Rows(tensor));
  const uint64_t row_bytes = operation.RowBytes(tensor);
  const uint64_t row = row_bytes / tensor.element_bytes;
  if (tensor.count == 0) return kNcclSuccess;
  if (rows % size == 0) {
    return nccl.ReduceScatter(tensor.input, output, rows / size * row, dtype,
                              op, comm, stream);
  }
  int result = kNcclSuccess;
  for (uint64_t r = 0; r < size && !NcclFailed(result); ++r) {
    const uint64_t begin = FirstRow(rows, r, size);
    const uint64_t count = (FirstRow(rows, r + 1, size) - begin) * row;
    if (count == 0) continue;
    result = nccl.Reduce(tensor.input + begin * row_bytes, output, count, dtype,
                         op, static_cast<int>(r), comm, stream);
  }
  return result;
}

Status PlanReducescatter(DataPlane* plane, const Operation& operation,
                         NcclCalls* calls) {
  const auto size = static_cast<uint64_t>(plane->members().size);
  const auto me = static_cast<uint64_t>(plane->members().rank);
  std::vector<uint64_t> mine;
  for (const OperationTensor& tensor : operation.tensors) {
    const auto rows = static_cast<uint64_t>(operation.Rows(tensor));
    mine.push_back(FirstRow(rows, me + 1, size) - FirstRow(rows, me, size));
  }
  std::vector<char*> outputs;
  const Status asked = AskForOutputs(operation, mine, &outputs);
  TFR_RETURN_IF_ERROR(AgreeOn(plane, asked));
  calls->allocated = true;
  calls->issue = [&operation, size, outputs = std::move(outputs)](
                     const NcclApi& nccl, const std::vector<int>& ops,
                     NcclComm comm, CudaStream stream) {
    return ForTensors(ops.size(), [&](size_t t) {
      return ScatterOne(nccl, operation, t, outputs[t], ops[t], size, comm,
                        stream);
    });
  };
  return Status::Ok();
}

// One tensor of an alltoall: bytes for each rank, and from each.
int SendOne(const NcclApi& nccl, const char* input, char* output,
            const std::vector<uint64_t>& to, const std::vector<uint64_t>& from,
            NcclComm comm, CudaStream stream) {
  int result = kNcclSuccess;
  for (size_t r = 0; r < to.size() && !NcclFailed(result); ++r) {
    const int peer = static_cast<int>(r);
    if (to[r] > 0) result = nccl.Send(input, to[r], kByte, peer, comm, stream);
    if (from[r] > 0 && !NcclFailed(result)) {
      result = nccl.Recv(output, from[r], kByte, peer, comm, stream);
    }
    input += to[r];
    output += from[r];
  }
  return result;
}

Status PlanAlltoall(DataPlane* plane, const Operation& operation,
                    NcclCalls* calls) {
  const size_t tensors = operation.tensors.size();
  const auto size = static_cast<size_t>(plane->members().size);
  const auto me = static_cast<size_t>(plane->members().rank);
  const std::vector<uint64_t> mine(operation.splits.begin(),
                                   operation.splits.end());
  Table splits;  // [place][tensor * size + to]
  TFR_RETURN_IF_ERROR(GatherNumbers(plane, mine, &splits));
  std::vector<uint64_t> sums(tensors);
  Table to(tensors);
  Table from(tensors);
  Status placed;
  for (size_t t = 0; t < tensors && placed.ok(); ++t) {
    const uint64_t row_bytes = operation.RowBytes(operation.tensors[t]);
    for (size_t r = 0; r < size; ++r) {
      const uint64_t rows = splits[r][t * size + me];
      if (operation.counts != nullptr) {
        operation.counts[t * size + r] = static_cast<int64_t>(rows);
      }
      placed = AddRows(operation, t, rows, &sums[t]);
      if (!placed.ok()) break;
      to[t].push_back(mine[t * size + r] * row_bytes);
      from[t].push_back(rows * row_bytes);
    }
  }
  std::vector<char*> outputs;
  if (placed.ok()) placed = AskForOutputs(operation, sums, &outputs);
  TFR_RETURN_IF_ERROR(AgreeOn(plane, placed));
  calls->allocated = true;
  calls->issue = [&operation, outputs = std::move(outputs), to = std::move(to),
                  from = std::move(from)](const NcclApi& nccl,
                                          const std::vector<int>&,
                                          NcclComm comm, CudaStream stream) {
    return ForTensors(to.size(), [&](size_t t) {
      return SendOne(nccl, operation.tensors[t].input, outputs[t], to[t],
                     from[t], comm, stream);
    });
  };
  return Status::Ok();
}

}  // namespace

int NcclDtype(int32_t dtype) {
  switch (dtype) {
    case TFR_INT8:
      return kNcclInt8;
    case TFR_UINT8:
    case TFR_BOOL:  // 0 and 1: Min is all, Max is any
      return kNcclUint8;
    case TFR_INT32:
      return kNcclInt32;
    case TFR_INT64:
      return kNcclInt64;
    case TFR_FLOAT16:
      return kNcclFloat16;
    case TFR_BFLOAT16:
      return kNcclBfloat16;
    case TFR_FLOAT32:
      return kNcclFloat32;
    case TFR_FLOAT64:
      return kNcclFloat64;
    default:
      return -1;
  }
}

int NcclReduceOp(int32_t reduce_op) {
  switch (reduce_op) {
    case TFR_MIN:
      return kNcclMin;
    case TFR_MAX:
      return kNcclMax;
    case TFR_PRODUCT:
      return kNcclProd;
    default:
      return kNcclSum;
  }
}

double FactorOf(const Operation& operation, int size) {
  const double factor = operation.prescale * operation.postscale;
  return operation.reduce_op == TFR_AVERAGE ? factor / size : factor;
}

bool NcclTakes(const Operation& operation, int size, bool scales) {
  if (operation.kind != TFR_ALLREDUCE && operation.kind != TFR_REDUCESCATTER) {
    return true;
  }
  if (operation.reduce_op == TFR_ADASUM) return false;
  // Two factors that cancel are still two roundings of an integer.
  const bool scaled = operation.prescale != 1.0 || operation.postscale != 1.0;
  const double factor = FactorOf(operation, size);
  for (const OperationTensor& tensor : operation.tensors) {
    if (scaled && !IsFloating(tensor.dtype)) return false;
    if (!TakesReduced(tensor, operation.reduce_op, factor, scales)) {
      return false;
    }
  }
  const bool sums =
      operation.reduce_op == TFR_SUM || operation.reduce_op == TFR_AVERAGE;
  return sums || !scaled;
}

Status PlanNcclCalls(DataPlane* plane, const Operation& operation,
                     NcclCalls* calls) {
  switch (operation.kind) {
    case TFR_ALLREDUCE:
      PlanAllreduce(operation, calls);
      return Status::Ok();
    case TFR_BROADCAST:
      PlanBroadcast(operation, calls);
      return Status::Ok();
    case TFR_ALLGATHER:
      return PlanAllgather(plane, operation, calls);
    case TFR_REDUCESCATTER:
      return PlanReducescatter(plane, operation, calls);
    case TFR_ALLTOALL:
      return PlanAlltoall(plane, operation, calls);
    default:
      return Internal(StrCat(operation.Title(), " has no NCCL calls"));
  }
}

}  // namespace tfring
