// Checks the engine on real GPUs (or, for this program's own sake, on the
// double): results against those of host memory, a killed peer, and times
// beside plain calls of NCCL. run.py builds and runs it; README.md says more.
//
// Ranks are processes. On a machine with fewer GPUs than ranks they share one.
#include <cinttypes>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gpu_cases.h"
#include "gpu_xla_cases.h"
#include "plain_nccl.h"
#include "processes.h"

using namespace tfring_test;

namespace {

std::string Setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

GpuLibrary Library() {
  return GpuLibrary(Setting("GPU_CHECK_CUDART"), Setting("GPU_CHECK_NCCL"));
}
bool IsDouble() { return !Setting("GPU_CHECK_DOUBLE").empty(); }

// The rank's world; its GPU becomes this thread's.
tfr_world* Join(const GpuLibrary& gpu, const JobOptions& options, int rank,
                const std::string& store) {
  gpu.Call("cudaSetDevice", gpu.DeviceOf(rank) - 1);
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  tfr_error error = {};
  EXPECT_EQ(tfr_world_create(&config, &world, &error), TFR_OK);
  EXPECT_EQ(std::string(error.text), std::string());
  return world;
}

// "2 nccl": ranks, and how tensors travel.
JobOptions OptionsOf(const GpuLibrary& gpu, const std::string& argument) {
  JobOptions options = gpu.Options(std::atoi(argument.c_str()));
  options.gpu_data = argument.find("nccl") != std::string::npos
                         ? TFR_GPU_NCCL
                         : TFR_GPU_STAGED;
  return options;
}

int Result() { return check::CurrentFailures().count() == 0 ? 0 : 1; }

void ExpectZeros(const std::vector<int>& statuses) {
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

// --- times ------------------------------------------------------------------

int64_t Median(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Barrier(tfr_world* world) {
  Call call;
  call.name = "barrier";
  call.kind = TFR_BARRIER;
  tfr_error error = {};
  EXPECT_EQ(call.Run(world, &error), TFR_OK);
}

// `count` allreduces of `elements` float32: one after another, or all at once.
int64_t EngineNs(const Call& call, tfr_world* world, int count, bool at_once) {
  tfr_error error = {};
  Barrier(world);
  const int64_t began = tfring::NowNs();
  if (!at_once) {
    for (int i = 0; i < count; ++i) EXPECT_EQ(call.Run(world, &error), TFR_OK);
    return (tfring::NowNs() - began) / count;
  }
  Ends ends;
  Call submitted = call;
  submitted.done = &Ends::Done;
  submitted.user = &ends;
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(submitted.Submit(world, &error), TFR_OK);
  }
  while (ends.count < count) sched_yield();
  EXPECT_EQ(ends.failed.load(), 0);
  return (tfring::NowNs() - began) / count;
}

int64_t PlainNs(PlainNccl* plain, tfr_world* world, void* buffer,
                size_t elements, int count, bool at_once) {
  Barrier(world);
  const int64_t began = tfring::NowNs();
  for (int i = 0; i < count; ++i) {
    plain->Allreduce(buffer, elements);
    if (!at_once) plain->Synchronize();
  }
  plain->Synchronize();
  return (tfring::NowNs() - began) / count;
}

// Ranks that share a GPU take turns on it, which can be slow: they stop alike.
bool TimeIsLeft(tfr_world* world, int64_t began) {
  int32_t left = tfring::NowNs() - began < 35'000'000'000 ? 1 : 0;
  Call call;
  call.name = "time is left";
  call.reduce_op = TFR_MIN;
  call.tensors = {{{}, TFR_INT32, &left, &left}};
  tfr_error error = {};
  EXPECT_EQ(call.Run(world, &error), TFR_OK);
  return left != 0;
}

struct Row {
  size_t bytes;
  int64_t engine, blocking, nonblocking;
  int rounds;
};
// Fewer say too little to judge.
constexpr int kRounds = 7;
constexpr int kLeastRounds = 5;
// run.py tells it from what has failed.
constexpr int kNotWhole = 77;

// Large ones must be as fast as NCCL alone, small ones nearly.
bool Passes(const Row& row) {
  if (row.bytes >= 1 << 20) return row.engine <= 1.03 * row.blocking;
  return row.engine <= row.nonblocking + 10'000;
}

void Print(const Row& row) {
  std::printf("%12zu %12.1f %12.1f %12.1f %8.3f  %s\n", row.bytes,
              row.engine / 1e3, row.blocking / 1e3, row.nonblocking / 1e3,
              static_cast<double>(row.engine) / row.blocking,
              IsDouble()                  ? ""
              : row.rounds < kLeastRounds ? "not judged"
              : Passes(row)               ? "ok"
                                          : "MISSED");
  std::fflush(stdout);
}

Row Measure(size_t bytes, tfr_world* world, const Call& call, void* buffer,
            PlainNccl* blocking, PlainNccl* nonblocking, int64_t role_began) {
  const bool at_once = bytes >= 1 << 20;
  const int count = bytes > (64u << 20) ? 5 : 20;
  const size_t elements = bytes / 4;
  std::vector<int64_t> engine;
  std::vector<int64_t> plain;
  std::vector<int64_t> other;
  for (int round = 0; round < kRounds; ++round) {  // side by side
    if (round >= 3 && !TimeIsLeft(world, role_began)) break;
    engine.push_back(EngineNs(call, world, count, at_once));
    plain.push_back(PlainNs(blocking, world, buffer, elements, count, at_once));
    other.push_back(
        PlainNs(nonblocking, world, buffer, elements, count, at_once));
  }
  return {bytes, Median(engine), Median(plain), Median(other),
          static_cast<int>(engine.size())};
}

}  // namespace

ROLE(cases) {
  const GpuLibrary gpu = Library();
  const JobOptions options = OptionsOf(gpu, argument);
  tfr_world* const world = Join(gpu, options, rank, store);
  if (world == nullptr) return 2;
  ReductionCases(gpu, world, rank, options.size,
                 options.gpu_data == TFR_GPU_STAGED);
  MoverCases(gpu, world, rank, options.size);
  tfr_world_shutdown(world);
  return Result();
}

ROLE(xla) {
  const GpuLibrary gpu = Library();
  const JobOptions options = OptionsOf(gpu, argument);
  tfr_world* const world = Join(gpu, options, rank, store);
  if (world == nullptr) return 2;
  {
    const XlaRank at(gpu, rank, world);
    for (const bool known : {true, false}) {
      Reductions(at, known);
      Movers(at, known);
    }
    Others(at);
    RaggedUnderXla(at);
  }
  tfr_world_shutdown(world);
  return Result();
}

// Under way when a peer is killed.
constexpr size_t kUnderWay = 16;

// Bytes of each tensor: 1 GiB where all of them fit twice over into what is
// free, since ranks may share a GPU. The same on all ranks.
int64_t BytesUnderWay(const GpuLibrary& gpu, tfr_world* world) {
  if (IsDouble()) return 1 << 20;
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(gpu.Call("cudaMemGetInfo", &free, &total), 0);
  auto bytes = static_cast<int64_t>(
      std::min(size_t{1} << 30, free / (4 * kUnderWay) / 1024 * 1024));
  Call call;
  call.name = "bytes";
  call.reduce_op = TFR_MIN;
  call.tensors = {{{}, TFR_INT64, &bytes, &bytes}};
  tfr_error error = {};
  EXPECT_EQ(call.Run(world, &error), TFR_OK);
  return bytes;
}

// An allreduce of int32, in place, whose first and last elements are looked at.
struct UnderWay {
  UnderWay(const GpuLibrary& gpu, int rank, int64_t bytes, size_t i)
      : gpu_(gpu),
        buffer(gpu, static_cast<size_t>(bytes)),
        last(bytes / 4 - 1) {
    const int32_t one = 1;
    gpu.Copy(buffer.data(), &one, 4);
    gpu.Copy(At(last), &one, 4);
    call.name = "late" + std::to_string(i);
    call.tensors = {{{bytes / 4}, TFR_INT32, buffer.data(), buffer.data()}};
    call.device = gpu.DeviceOf(rank);
    call.done = &Ends::Done;
    call.user = &ends;
  }
  bool IsTwo() const {
    int32_t values[2] = {};
    gpu_.Copy(&values[0], buffer.data(), 4);
    gpu_.Copy(&values[1], At(last), 4);
    return values[0] == 2 && values[1] == 2;
  }
  void* At(int64_t element) const {
    return static_cast<int32_t*>(buffer.data()) + element;
  }

  const GpuLibrary& gpu_;
  const GpuBuffer buffer;
  const int64_t last;
  Call call;
  Ends ends;
};

// Kernels of the survivor wait for a peer that is gone. None of its collectives
// says that it is done without its result, neither the first nor those behind.
ROLE(killed) {
  const GpuLibrary gpu = Library();
  const JobOptions options = OptionsOf(gpu, argument);
  tfr_world* const world = Join(gpu, options, rank, store);
  if (world == nullptr) return 2;
  tfr_error error = {};
  {
    const int64_t bytes = BytesUnderWay(gpu, world);
    std::vector<std::unique_ptr<UnderWay>> all;
    for (size_t i = 0; i < kUnderWay; ++i) {
      all.push_back(std::make_unique<UnderWay>(gpu, rank, bytes, i));
    }
    const GpuBuffer buffer(gpu, Bytes(1 << 20, '\0'));
    Call call;
    call.name = "step";
    call.tensors = {{{1 << 18}, TFR_FLOAT32, buffer.data(), buffer.data()}};
    call.device = gpu.DeviceOf(rank);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(call.Run(world, &error), TFR_OK);
    Barrier(world);
    for (const auto& one : all) {
      EXPECT_EQ(one->call.Submit(world, &error), TFR_OK);
    }
    if (rank == 1) {
      all[0]->ends.Await(1);  // then the others are in their streams
      _exit(9);
    }
    int64_t began = 0;
    int failed = 0;
    for (const auto& one : all) {
      one->ends.Await(1);
      if (began == 0) began = tfring::NowNs();
      failed += one->ends.failed;
      if (one->ends.failed != 0) EXPECT_CONTAINS(one->ends.text, "rank 1");
      if (one->ends.failed == 0) EXPECT_TRUE(one->IsTwo());
    }
    std::printf("%d of %zu, of %lld bytes each, had no result\n", failed,
                kUnderWay, static_cast<long long>(bytes));
    std::fflush(stdout);
    if (!IsDouble()) EXPECT_GT(failed, 0);
    EXPECT_LT(tfring::NowNs() - began, int64_t{5'000'000'000});
    EXPECT_EQ(call.Run(world, &error), TFR_UNAVAILABLE);
    EXPECT_CONTAINS(error.text, "rank 1");
  }
  tfr_world_shutdown(world);
  // The GPU is as good as before.
  EXPECT_TRUE(GpuBuffer(gpu, Bytes(16, 'x')).Get() == Bytes(16, 'x'));
  return Result();
}

ROLE(times) {
  const GpuLibrary gpu = Library();
  const JobOptions options = OptionsOf(gpu, argument);
  tfr_world* const world = Join(gpu, options, rank, store);
  if (world == nullptr) return 2;
  const size_t largest = IsDouble() ? 4 << 20 : size_t{1} << 30;
  const GpuBuffer buffer(gpu, largest);
  Call call;
  call.device = gpu.DeviceOf(rank);
  bool whole = true;
  {
    // The double has no blocking communicators.
    PlainNccl blocking(options, gpu, world, rank, IsDouble() ? 0 : 1);
    PlainNccl nonblocking(options, gpu, world, rank, 0);
    if (rank == 0) {
      std::printf("%12s %12s %12s %12s %8s\n", "bytes", "tfring us", "NCCL us",
                  "nonblocking", "ratio");
    }
    const int64_t began = tfring::NowNs();
    for (size_t bytes = 1024; bytes <= largest; bytes *= 4) {
      if (!TimeIsLeft(world, began)) {
        whole = false;
        if (rank == 0) std::printf("no time is left for %zu\n", bytes);
        break;
      }
      call.name = "size " + std::to_string(bytes);
      call.tensors = {{{static_cast<int64_t>(bytes / 4)},
                       TFR_FLOAT32,
                       buffer.data(),
                       buffer.data()}};
      const Row row = Measure(bytes, world, call, buffer.data(), &blocking,
                              &nonblocking, began);
      const bool judged = row.rounds >= kLeastRounds;
      whole = whole && judged;
      if (rank != 0) continue;
      Print(row);
      if (!IsDouble() && judged) EXPECT_TRUE(Passes(row));
    }
    Barrier(world);
  }
  tfr_world_shutdown(world);
  return Result() == 0 && !whole ? kNotWhole : Result();
}

namespace {

// All ranks stop alike. What was not measured or not judged is not passed.
void ExpectTimes(int size, const char* argument) {
  for (const int status : RunProcesses(size, "times", argument)) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotWhole) {
      std::printf("NOT WHOLE: time was too short for some sizes\n");
    }
    EXPECT_EQ(status, 0);
  }
}

}  // namespace

// Steps of run.py, which gives each a time limit of its own. No name is part of
// another: it picks by name.
TEST(results_one_nccl) { ExpectZeros(RunProcesses(1, "cases", "1 nccl")); }
TEST(results_one_host) { ExpectZeros(RunProcesses(1, "cases", "1 host")); }
TEST(results_two_nccl) { ExpectZeros(RunProcesses(2, "cases", "2 nccl")); }
TEST(results_two_host) { ExpectZeros(RunProcesses(2, "cases", "2 host")); }

TEST(xla_two_nccl) { ExpectZeros(RunProcesses(2, "xla", "2 nccl")); }
TEST(xla_two_host) { ExpectZeros(RunProcesses(2, "xla", "2 host")); }

TEST(killed_peer) {
  Processes job(2, "killed", "2 nccl");
  EXPECT_EQ(job.Wait(0), 0);
  EXPECT_EQ(WEXITSTATUS(job.Wait(1)), 9);
}

TEST(times_one) { ExpectTimes(1, "1 nccl"); }
TEST(times_two) { ExpectTimes(2, "2 nccl"); }
