// How the engine uses CUDA: on which devices, how much of it, and what it
// leaves behind. On the double of CUDA and NCCL, which ends the process where
// something of one device is used while another is current.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

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
