// How the engine uses CUDA: on which devices, how much of it, and what it
// leaves behind. On the double of CUDA and NCCL, which ends the process where
// something of one device is used while another is current.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/nccl/gpu.h"
#include "gpu_job.h"
#include "processes.h"

using namespace tfring_test;

namespace {

// No rank is on device 0, which is the one that a thread has by default.
int DeviceOf(int rank) { return rank + 3; }

tfr_world* Join(const JobOptions& options, int rank, const std::string& store) {
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  tfr_error error = {};
  EXPECT_EQ(tfr_world_create(&config, &world, &error), TFR_OK);
  return world;
}

// A collective of `count` int32, each 1, in place.
struct Ones {
  const GpuBuffer buffer;
  Call call;

  Ones(const Double& gpu, int rank, size_t count = 64, int32_t op = TFR_SUM)
      : buffer(gpu, Filled(count)) {
    call.name = "ones";
    call.reduce_op = op;
    call.tensors = {{{static_cast<int64_t>(count)},
                     TFR_INT32,
                     buffer.data(),
                     buffer.data()}};
    call.device = DeviceOf(rank) + 1;
  }
  void Expect(tfr_world* world, int32_t value) const {
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_OK);
    EXPECT_EQ(std::string(error.text), std::string());
    int32_t got = 0;
    const Bytes bytes = buffer.Get();
    std::memcpy(&got, bytes.data(), sizeof(got));
    EXPECT_EQ(got, value);
  }

 private:
  static Bytes Filled(size_t count) {
    Bytes bytes(4 * count);
    for (size_t i = 0; i < count; ++i) bytes[4 * i] = 1;
    return bytes;
  }
};

int Result() { return check::CurrentFailures().count() == 0 ? 0 : 1; }

void Submit(const Call& call, tfr_world* world, Ends* ends) {
  Call one = call;
  one.done = &Ends::Done;
  one.user = ends;
  tfr_error error = {};
  EXPECT_EQ(one.Submit(world, &error), TFR_OK);
}

}  // namespace

// Whatever thread works for a rank: no context but on the rank's own GPU, which
// costs hundreds of MB on each other one.
ROLE(own_device) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = argument == "nccl" ? TFR_GPU_NCCL : TFR_GPU_STAGED;
  gpu.Call("cudaSetDevice", DeviceOf(rank));
  const uint64_t own = uint64_t{1} << DeviceOf(rank);
  {
    const Ones here(gpu, rank);
    const Ones there(gpu, rank);
    const Ones scaled(gpu, rank, 64, TFR_AVERAGE);  // is always staged
    tfr_world* const world = Join(options, rank, store);
    // Threads that have never used CUDA: one that only submits, then one that
    // runs it.
    std::thread([&] {
      Ends ends;
      Submit(there.call, world, &ends);
      ends.Await(1);
    }).join();
    EXPECT_EQ(gpu.contexts(), own);
    std::thread([&] {
      tfr_error error = {};
      EXPECT_EQ(there.call.Run(world, &error), TFR_OK);
      void* memory = nullptr;
      EXPECT_EQ(
          tfr_device_allocate(world, DeviceOf(rank) + 1, 100, &memory, &error),
          TFR_OK);
      tfr_device_free(world, memory);
    }).join();
    EXPECT_EQ(gpu.contexts(), own);
    here.Expect(world, 2);
    scaled.Expect(world, 1);
    // Last thing of a world: another new thread's.
    std::thread([&] { tfr_world_shutdown(world); }).join();
  }
  EXPECT_EQ(gpu.contexts(), own);
  EXPECT_EQ(gpu.alive(), 0);
  return Result();
}
TEST(only_the_own_device_by_nccl) {
  EXPECT_TRUE(RunProcesses(2, "own_device", "nccl") == std::vector<int>(2));
}
TEST(only_the_own_device_staged) {
  EXPECT_TRUE(RunProcesses(2, "own_device", "host") == std::vector<int>(2));
}

// Whoever has made another device current finds it so afterwards.
TEST(callers_keep_their_device) {
  const Double gpu;
  for (const int32_t data : {TFR_GPU_NCCL, TFR_GPU_STAGED}) {
    JobOptions options = gpu.Options(2);
    options.gpu_data = data;
    RunJob(options, [&](int rank, tfr_world* world) {
      const Ones ones(gpu, rank);
      gpu.Call("cudaSetDevice", 7);
      ones.Expect(world, 2);
      int device = -1;
      gpu.Call("cudaGetDevice", &device);
      EXPECT_EQ(device, 7);
    });
    EXPECT_EQ(gpu.alive(), 0);
  }
}

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::unique_ptr<tfring::Gpu> OpenGpu(const char* cudart = GPU_DOUBLE) {
  std::unique_ptr<tfring::Gpu> gpu;
  EXPECT_OK(tfring::Gpu::Open(cudart, 2, &gpu));
  return gpu;
}

// What is asked from CUDA for this many bytes.
uint64_t Pinned(uint64_t bytes) {
  const auto gpu = OpenGpu();
  tfring::PinnedBuffer buffer;
  EXPECT_OK(gpu->Pin(bytes, &buffer));
  return gpu->pinned_bytes();
}

}  // namespace

TEST(pinned_sizes) {
  EXPECT_EQ(Pinned(0), uint64_t{4096});
  EXPECT_EQ(Pinned(5000), uint64_t{8192});
  EXPECT_EQ(Pinned(kMiB), kMiB);
  EXPECT_EQ(Pinned(4 * kMiB), 4 * kMiB);
  EXPECT_EQ(Pinned(4 * kMiB + 1), 4 * kMiB + kMiB / 2);
  EXPECT_EQ(Pinned(80 * kMiB), 80 * kMiB);
  EXPECT_EQ(Pinned(80 * kMiB + 1), 88 * kMiB);
}

// What a large one needed does not stay for good; what is in use does.
TEST(unused_pinned_memory_is_bounded) {
  const Double library;
  {
    const auto gpu = OpenGpu();
    tfring::PinnedBuffer used;
    EXPECT_OK(gpu->Pin(kMiB, &used));
    {
      std::vector<tfring::PinnedBuffer> all(4);
      for (tfring::PinnedBuffer& one : all) {
        EXPECT_OK(gpu->Pin(100 * kMiB, &one));
      }
    }
    EXPECT_EQ(gpu->pinned_bytes(), (1 + 4 * 104) * kMiB);
    gpu->Trim();
    EXPECT_EQ(gpu->pinned_bytes(), (1 + 2 * 104) * kMiB);
    tfring::PinnedBuffer again;
    EXPECT_OK(gpu->Pin(100 * kMiB, &again));
    gpu->Trim();
    EXPECT_EQ(gpu->pinned_bytes(), (1 + 2 * 104) * kMiB);
  }
  EXPECT_EQ(library.alive(), 0);
}

// The next collective gives back what a large one has needed.
TEST(a_large_allgather_gives_its_memory_back) {
  const Double gpu;
  JobOptions options = gpu.Options(1);
  options.gpu_data = TFR_GPU_STAGED;
  RunJob(options, [&](int, tfr_world* world) {
    constexpr size_t kBytes = 132 * kMiB;
    {
      const GpuBuffer input(gpu, kBytes);
      GpuOutputs outputs(gpu, {1});
      Call call;
      call.kind = TFR_ALLGATHER;
      call.tensors = {
          {{static_cast<int64_t>(kBytes)}, TFR_UINT8, input.data(), nullptr}};
      call.allocate = &GpuOutputs::Allocate;
      call.user = &outputs;
      call.device = DeviceOf(0) + 1;
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_OK);
    }
    tfr_stats stats = {};
    tfr_world_stats(world, &stats);
    EXPECT_TRUE(stats.staging_bytes >= 2 * kBytes);
    const Ones ones(gpu, 0, 64, TFR_SUM);
    ones.Expect(world, 1);
    tfr_world_stats(world, &stats);
    EXPECT_TRUE(stats.staging_bytes < 2 * kBytes);
  });
  EXPECT_EQ(gpu.alive(), 0);
}

// CUDA would wait for what a stream still does.
ROLE(given_up) {
  const Double library;
  library.Slow(3'000'000);
  auto gpu = OpenGpu();
  tfring::PinnedBuffer buffer;
  EXPECT_OK(gpu->Pin(kMiB, &buffer));
  {
    const tfring::ScopedDevice current(gpu->cuda(), gpu->device());
    tfring::CudaEvent event = nullptr;
    EXPECT_OK(gpu->Mark(gpu->collectives(), &event));
  }
  buffer = tfring::PinnedBuffer();
  if (argument == "yes") gpu->GiveUp();
  const int64_t began = tfring::NowNs();
  gpu.reset();
  const bool waited = tfring::NowNs() - began >= int64_t{2'000'000'000};
  EXPECT_EQ(waited, argument == "no");
  // Three streams, the event, the memory.
  EXPECT_EQ(library.alive(), argument == "yes" ? 5 : 0);
  return Result();
}
TEST(what_was_given_up_is_left_behind) {
  for (const char* argument : {"yes", "no"}) {
    CASE("given up: ", argument);
    EXPECT_TRUE(RunProcesses(1, "given_up", argument) == std::vector<int>(1));
  }
}

TEST(collectives_go_before_other_work) {
  for (const bool has_priorities : {true, false}) {
    CASE("the library has priorities ", has_priorities);
    const char* const path = has_priorities ? GPU_DOUBLE : GPU_DOUBLE_OLD;
    const Double library(path);
    const int64_t before = library.Call("gpu_double_first_streams");
    OpenGpu(path);
    EXPECT_EQ(library.Call("gpu_double_first_streams") - before,
              int64_t{has_priorities});
    EXPECT_EQ(library.alive(), 0);
  }
}
