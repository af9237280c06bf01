// NCCL's part of the double. Compiled with GPU_DOUBLE_OLD it lacks what NCCL
// got later and the engine can do without.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "comm_double.h"
#include "cuda_double.h"

namespace gpu_double {
namespace {

constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;

// The group that this thread has open.
struct Group {
  int depth = 0;
  Comm* comm = nullptr;
  void* stream = nullptr;
  std::vector<Call> calls;
};
thread_local Group group;

int Add(void* handle, void* stream, Call call) {
  auto* const comm = static_cast<Comm*>(handle);
  if (group.depth == 0) Misused("a call outside of a group");
  comm->CheckIdle();
  ExpectCurrent(comm->device(), "a communicator is called");
  ExpectCurrent(DeviceOf(stream), "NCCL is given a stream");
  if (group.comm != nullptr && group.comm != comm) {
    Misused("two communicators in one group");
  }
  ++Count().nccl_calls;
  group.comm = comm;
  group.stream = stream;
  group.calls.push_back(std::move(call));
  return Chance() ? kInProgress : kOk;
}

char* At(const void* pointer, size_t offset) {
  return static_cast<char*>(Real(pointer)) + offset;
}

void AddSend(Call* call, int peer, const void* from, size_t offset,
             size_t bytes, uint64_t tag) {
  call->sends.push_back({peer, At(from, offset), bytes, tag, 0, false});
}

// Memory of the call's own, since outputs may be inputs.
char* AddReceive(Call* call, int peer, size_t bytes, uint64_t tag) {
  call->memory.emplace_back(bytes + 1);
  char* const memory = call->memory.back().data();
  call->receives.push_back({peer, memory, bytes, tag, 0, false});
  return memory;
}

// Every rank's bytes to every rank: where each will be, by rank.
std::vector<const char*> AddExchange(Comm* comm, Call* call, const void* from,
                                     size_t bytes, uint64_t tag) {
  std::vector<const char*> inputs;
  for (int rank = 0; rank < comm->size(); ++rank) {
    if (rank == comm->rank()) {
      inputs.push_back(At(from, 0));
      continue;
    }
    AddSend(call, rank, from, 0, bytes, tag);
    inputs.push_back(AddReceive(call, rank, bytes, tag));
  }
  return inputs;
}

uint64_t What(int kind, size_t count, int dtype, int op, int root) {
  uint64_t what = static_cast<uint64_t>(kind);
  what = what * 31 + count;
  what = what * 31 + static_cast<uint64_t>(dtype);
  what = what * 31 + static_cast<uint64_t>(op < kFirstMadeOp ? op : 5);
  return what * 31 + static_cast<uint64_t>(root);
}

// A reduction of the elements [offset, offset + count) of all inputs to `root`.
void AddReduce(Comm* comm, Call* call, const void* from, size_t offset,
               size_t count, int dtype, int op, int root, char* to,
               uint64_t tag) {
  const size_t bytes = count * ElementBytes(dtype);
  const size_t skip = offset * ElementBytes(dtype);
  if (comm->rank() != root) {
    AddSend(call, root, from, skip, bytes, tag);
    return;
  }
  std::vector<const char*> inputs;
  for (int rank = 0; rank < comm->size(); ++rank) {
    inputs.push_back(rank == root ? At(from, skip)
                                  : AddReceive(call, rank, bytes, tag));
  }
  const auto before = call->finish;
  call->finish = [=, how = comm->ReductionOf(op)] {
    if (before) before();
    ReduceInto(dtype, inputs, how, count, to);
  };
}

}  // namespace
}  // namespace gpu_double

using gpu_double::Call;
using gpu_double::Comm;

GPU_DOUBLE_API void gpu_double_nccl_error(int rank, int result) {
  gpu_double::error_rank = rank;
  gpu_double::error_result = result;
}
GPU_DOUBLE_API void gpu_double_nccl_hangs(int hangs) {
  gpu_double::hangs = hangs;
}
GPU_DOUBLE_API void gpu_double_nccl_stuck(int stuck) {
  gpu_double::stuck = stuck;
}
GPU_DOUBLE_API void gpu_double_nccl_version(int version) {
  gpu_double::version = version;
}

GPU_DOUBLE_API int ncclGetVersion(int* version) {
  *version = gpu_double::version;
  return gpu_double::kOk;
}

GPU_DOUBLE_API const char* ncclGetErrorString(int result) {
  switch (result) {
    case gpu_double::kOk:
      return "no error";
    case 6:
      return "remote process exited or there was a network error";
    case gpu_double::kInProgress:
      return "NCCL operation in progress";
    default:
      return "unhandled system error";
  }
}

GPU_DOUBLE_API const char* ncclGetLastError(void*) {
  return "told by the double";
}

GPU_DOUBLE_API int ncclGetUniqueId(gpu_double::NcclUniqueId* id) {
  static std::atomic<int> made{0};
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "/gpu-double-%d-%d",
                getpid(), made++);
  return gpu_double::Mapping::Create(id->internal) ? gpu_double::kOk
                                                   : gpu_double::kSystemError;
}

GPU_DOUBLE_API int ncclCommInitRankConfig(void** out, int size,
                                          gpu_double::NcclUniqueId id, int rank,
                                          gpu_double::NcclConfig* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0 ||
      config->size > sizeof(*config) || size > gpu_double::kMostRanks) {
    return gpu_double::kInvalidArgument;
  }
  auto comm = std::make_unique<Comm>(id.internal, rank, size);
  if (!comm->usable()) return gpu_double::kSystemError;
  *out = comm.release();
  static_cast<Comm*>(*out)->Init();
  return gpu_double::kInProgress;
}

GPU_DOUBLE_API int ncclCommGetAsyncError(void* handle, int* error) {
  auto* const comm = static_cast<Comm*>(handle);
  const Comm::Inside inside(comm);
  *error = comm->AsyncError();
  return gpu_double::kOk;
}

GPU_DOUBLE_API int ncclCommFinalize(void* handle) {
  auto* const comm = static_cast<Comm*>(handle);
  const Comm::Inside inside(comm);
  comm->Finalize();
  return gpu_double::kInProgress;
}

GPU_DOUBLE_API int ncclCommDestroy(void* handle) {
  auto* const comm = static_cast<Comm*>(handle);
  comm->CheckIdle();
  comm->AwaitKernels();
  delete comm;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int ncclCommAbort(void* handle) {
  auto* const comm = static_cast<Comm*>(handle);
  if (comm->inside() > 0) gpu_double::Misused("abort while inside a call");
  comm->Abort();
  delete comm;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int ncclGroupStart() {
  ++gpu_double::group.depth;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int ncclGroupEnd() {
  gpu_double::Group& group = gpu_double::group;
  if (--group.depth > 0) return gpu_double::kOk;
  Comm* const comm = group.comm;
  std::vector<Call> calls = std::move(group.calls);
  group.comm = nullptr;
  group.calls.clear();
  if (comm == nullptr) return gpu_double::kOk;
  const Comm::Inside inside(comm);
  comm->Launch(std::move(calls), group.stream);
  return gpu_double::kInProgress;
}

GPU_DOUBLE_API int ncclAllReduce(const void* from, void* to, size_t count,
                                 int dtype, int op, void* handle,
                                 void* stream) {
  auto* const comm = static_cast<Comm*>(handle);
  const uint64_t tag = comm->NextTag(gpu_double::What(1, count, dtype, op, 0));
  const size_t bytes = count * gpu_double::ElementBytes(dtype);
  Call call;
  const std::vector<const char*> inputs =
      gpu_double::AddExchange(comm, &call, from, bytes, tag);
  call.finish = [=, how = comm->ReductionOf(op)] {
    gpu_double::ReduceInto(dtype, inputs, how, count, gpu_double::At(to, 0));
  };
  return gpu_double::Add(handle, stream, std::move(call));
}

GPU_DOUBLE_API int ncclReduce(const void* from, void* to, size_t count,
                              int dtype, int op, int root, void* handle,
                              void* stream) {
  auto* const comm = static_cast<Comm*>(handle);
  const uint64_t tag =
      comm->NextTag(gpu_double::What(2, count, dtype, op, root));
  Call call;
  gpu_double::AddReduce(comm, &call, from, 0, count, dtype, op, root,
                        gpu_double::At(to, 0), tag);
  return gpu_double::Add(handle, stream, std::move(call));
}

GPU_DOUBLE_API int ncclReduceScatter(const void* from, void* to, size_t count,
                                     int dtype, int op, void* handle,
                                     void* stream) {
  auto* const comm = static_cast<Comm*>(handle);
  const uint64_t tag = comm->NextTag(gpu_double::What(3, count, dtype, op, 0));
  Call call;
  for (int root = 0; root < comm->size(); ++root) {
    gpu_double::AddReduce(comm, &call, from, static_cast<size_t>(root) * count,
                          count, dtype, op, root, gpu_double::At(to, 0), tag);
  }
  return gpu_double::Add(handle, stream, std::move(call));
}

GPU_DOUBLE_API int ncclBroadcast(const void* from, void* to, size_t count,
                                 int dtype, int root, void* handle,
                                 void* stream) {
  auto* const comm = static_cast<Comm*>(handle);
  const uint64_t tag =
      comm->NextTag(gpu_double::What(4, count, dtype, 0, root));
  const size_t bytes = count * gpu_double::ElementBytes(dtype);
  char* const output = gpu_double::At(to, 0);
  Call call;
  const char* source = nullptr;
  if (comm->rank() == root) {
    source = gpu_double::At(from, 0);
    for (int rank = 0; rank < comm->size(); ++rank) {
      if (rank != root) {
        gpu_double::AddSend(&call, rank, from, 0, bytes, tag);
      }
    }
  } else {
    source = gpu_double::AddReceive(&call, root, bytes, tag);
  }
  call.finish = [=] { std::memmove(output, source, bytes); };
  return gpu_double::Add(handle, stream, std::move(call));
}

GPU_DOUBLE_API int ncclAllGather(const void* from, void* to, size_t count,
                                 int dtype, void* handle, void* stream) {
  auto* const comm = static_cast<Comm*>(handle);
  const uint64_t tag = comm->NextTag(gpu_double::What(5, count, dtype, 0, 0));
  const size_t bytes = count * gpu_double::ElementBytes(dtype);
  Call call;
  const std::vector<const char*> inputs =
      gpu_double::AddExchange(comm, &call, from, bytes, tag);
  char* const output = gpu_double::At(to, 0);
  call.finish = [=] {
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      std::memmove(output + rank * bytes, inputs[rank], bytes);
    }
  };
  return gpu_double::Add(handle, stream, std::move(call));
}

GPU_DOUBLE_API int ncclSend(const void* from, size_t count, int dtype, int peer,
                            void* handle, void* stream) {
  Call call;
  const size_t bytes = count * gpu_double::ElementBytes(dtype);
  gpu_double::AddSend(&call, peer, from, 0, bytes, 6);
  return gpu_double::Add(handle, stream, std::move(call));
}

GPU_DOUBLE_API int ncclRecv(void* to, size_t count, int dtype, int peer,
                            void* handle, void* stream) {
  Call call;
  const size_t bytes = count * gpu_double::ElementBytes(dtype);
  const char* source = gpu_double::AddReceive(&call, peer, bytes, 6);
  char* const output = gpu_double::At(to, 0);
  call.finish = [=] { std::memmove(output, source, bytes); };
  return gpu_double::Add(handle, stream, std::move(call));
}

#ifndef GPU_DOUBLE_OLD
GPU_DOUBLE_API int ncclRedOpCreatePreMulSum(int* op, void* scalar, int dtype,
                                            int, void* handle) {
  auto* const comm = static_cast<Comm*>(handle);
  const Comm::Inside inside(comm);
  comm->CheckIdle();
  double factor = *static_cast<double*>(scalar);
  if (dtype == tfring::kNcclFloat32) factor = *static_cast<float*>(scalar);
  if (dtype == tfring::kNcclFloat16) {
    factor =
        tfring::half_scalar::ToFloat(*static_cast<tfring::Float16*>(scalar));
  }
  if (dtype == tfring::kNcclBfloat16) {
    factor =
        tfring::half_scalar::ToFloat(*static_cast<tfring::BFloat16*>(scalar));
  }
  *op = comm->MakeOp({tfring::kNcclSum, true, factor});
  return gpu_double::kOk;
}

GPU_DOUBLE_API int ncclRedOpDestroy(int op, void* handle) {
  return static_cast<Comm*>(handle)->DestroyOp(op)
             ? gpu_double::kOk
             : gpu_double::kInvalidArgument;
}
#endif
