// The world ends while collectives of GPU tensors are under way: none of them
// says that it is done without its result. On the double of CUDA and NCCL.
#include <thread>
#include <vector>

#include "gpu_job.h"
#include "gpu_ones.h"
#include "processes.h"

using namespace tfring_test;

namespace {

int32_t Barrier(tfr_world* world) {
  Call call;
  call.name = "barrier";
  call.kind = TFR_BARRIER;
  tfr_error error = {};
  return call.Run(world, &error);
}

// Rank 1 ends the world when the ranks have asked NCCL for `calls` more, whose
// kernels do not end. Waits until `late` has heard of it.
void AbortWhenStuck(const Double& gpu, int rank, tfr_world* world,
                    Meeting* meeting, int64_t calls, ManyOnes* late) {
  const Ones ones(gpu, rank + 1);
  std::string text;
  EXPECT_EQ(ones.Run(world, &text), TFR_OK);
  meeting->Pass();
  const int64_t before = gpu.nccl_calls();
  gpu.Set("gpu_double_nccl_stuck", 1);
  meeting->Pass();
  late->Submit(world);
  AwaitNcclCalls(gpu, before + calls);
  meeting->Pass();
  if (rank == 1) tfr_world_abort(world, "on purpose");
  late->Await();
}

}  // namespace

// Those that wait behind the first one end with it, and not as if they were
// done.
TEST(abort_while_under_way) {
  const Double gpu;
  const int64_t aborts = gpu.aborts();
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_NCCL;
  Meeting meeting(2);
  RunJob(options, [&](int rank, tfr_world* world) {
    ManyOnes late(gpu, rank + 1, 5);
    AbortWhenStuck(gpu, rank, world, &meeting, 10, &late);
    EXPECT_EQ(late.failed(), 5);
    EXPECT_CONTAINS(late.text(), "allreduce 'late0' failed: rank 1");
    EXPECT_CONTAINS(late.text(), "on purpose");
  });
  EXPECT_EQ(gpu.aborts(), aborts + 2);
  EXPECT_EQ(gpu.alive(), 0);
}

// Sums of a host that an abort spoiled do not go to other hosts.
TEST(abort_while_hosts_add_up) {
  const Double gpu;
  JobOptions options = gpu.Options(4);
  options.hosts = {"a", "a", "b", "b"};
  options.gpu_data = TFR_GPU_NCCL;
  options.gpu_hosts_by_tcp = true;
  Meeting meeting(4);
  RunJob(options, [&](int rank, tfr_world* world) {
    ManyOnes late(gpu, rank + 1, 3);
    AbortWhenStuck(gpu, rank, world, &meeting, 4, &late);
    EXPECT_EQ(late.failed(), 3);
    EXPECT_CONTAINS(late.text(), "on purpose");
  });
  EXPECT_EQ(gpu.alive(), 0);
}

TEST(abort_before_a_peer_comes) {
  const Double gpu;
  for (const int32_t data : {TFR_GPU_NCCL, TFR_GPU_STAGED}) {
    CASE("data ", data);
    const int64_t aborts = gpu.aborts();
    JobOptions options = gpu.Options(2);
    options.gpu_data = data;
    Meeting meeting(2);
    RunJob(options, [&](int rank, tfr_world* world) {
      const Ones ones(gpu, rank + 1);
      std::string text;
      EXPECT_EQ(ones.Run(world, &text), TFR_OK);
      meeting.Pass();
      ManyOnes late(gpu, rank + 1, 3);
      if (rank == 1) tfr_world_abort(world, "on purpose");
      late.Submit(world);
      late.Await();
      EXPECT_EQ(late.failed(), 3);
      EXPECT_CONTAINS(late.text(), "allreduce 'late0' failed: rank 1");
      EXPECT_CONTAINS(late.text(), "on purpose");
    });
    EXPECT_EQ(gpu.aborts(), aborts + (data == TFR_GPU_NCCL ? 2 : 0));
    EXPECT_EQ(gpu.alive(), 0);
  }
}

// What was staged while a rank had joined is still under way when the ranks
// meet for the first time; then the world ends.
TEST(abort_while_ranks_meet_after_a_join) {
  const Double gpu;
  gpu.Set("gpu_double_nccl_hangs", 1);
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_NCCL;
  RunJob(options, [&](int rank, tfr_world* world) {
    gpu.Slow(100'000);
    Call join;
    join.kind = TFR_JOIN;
    ManyOnes staged(gpu, rank + 1, rank == 0 ? 1 : 0, "staged");
    staged.Submit(world);
    tfr_error error = {};
    EXPECT_EQ(join.Run(world, &error), TFR_OK);
    ManyOnes late(gpu, rank + 1, 1);
    late.Submit(world);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      tfr_world_abort(world, "on purpose");
    }
    late.Await();
    staged.Await();
    EXPECT_EQ(late.failed(), 1);
    EXPECT_CONTAINS(late.text(), "on purpose");
  });
  gpu.Slow(0);
  EXPECT_EQ(gpu.alive(), 0);
}

// A peer does not come to the second of many pieces: copies end before the
// buffers go.
TEST(abort_in_the_middle_of_pieces) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_STAGED;
  options.chunk_bytes = 4096;
  Meeting meeting(2);
  RunJob(options, [&](int rank, tfr_world* world) {
    gpu.Slow(3000);
    const GpuBuffer buffer(gpu, Bytes(1 << 20));
    Call call;
    call.tensors = {{{1 << 20}, TFR_UINT8, buffer.data(), buffer.data()}};
    call.device = rank + 1;
    std::thread ending;
    meeting.Pass();
    if (rank == 1) {
      ending = std::thread([world] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        tfr_world_abort(world, "on purpose");
      });
    }
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_UNAVAILABLE);
    EXPECT_CONTAINS(error.text, "on purpose");
    if (ending.joinable()) ending.join();
  });
  gpu.Slow(0);
  EXPECT_EQ(gpu.alive(), 0);
}

TEST(many_under_way_when_the_world_ends) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_NCCL;
  Meeting meeting(2);
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<std::unique_ptr<Ones>> all;
    Ends ends;
    std::string text;
    const Ones first(gpu, rank + 1);
    EXPECT_EQ(first.Run(world, &text), TFR_OK);
    meeting.Pass();
    if (rank == 1) gpu.Set("gpu_double_nccl_error", 1, 6);
    meeting.Pass();
    for (int i = 0; i < 200; ++i) {  // more than are let under way
      all.push_back(
          std::make_unique<Ones>(gpu, rank + 1, "t" + std::to_string(i)));
      all.back()->call.done = &Ends::Done;
      all.back()->call.user = &ends;
      tfr_error error = {};
      if (all.back()->call.Submit(world, &error) != TFR_OK) ++ends.count;
    }
    ends.Await(200);
    EXPECT_CONTAINS(ends.text, "rank 1, GPU 0000:01:00.0");
  });
  EXPECT_EQ(gpu.alive(), 0);
}

// A rank is killed with kernels under way, on which the others' wait.
ROLE(killed) {
  const Double gpu;
  JobOptions options = gpu.Options(3);
  options.gpu_data = TFR_GPU_NCCL;
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  tfr_error error = {};
  if (tfr_world_create(&config, &world, &error) != TFR_OK) return 2;
  std::string text;
  for (int i = 0; i < 20; ++i) {
    const Ones ones(gpu, rank + 1, "step");
    if (ones.Run(world, &text) != TFR_OK || ones.Value() != 3) return 3;
  }
  if (rank == 1) gpu.Set("gpu_double_nccl_stuck", 1);
  ManyOnes late(gpu, rank + 1, 5);
  late.Submit(world);
  AwaitNcclCalls(gpu, 25);
  // Once it ends on rank 1, all ranks have launched them. The others may still
  // be in it when rank 1 is gone.
  const int32_t met = Barrier(world);
  if (rank == 1) _exit(met == TFR_OK ? 9 : 4);
  const int64_t began = tfring::NowNs();
  late.Await();
  EXPECT_LT(tfring::NowNs() - began, int64_t{5'000'000'000});
  EXPECT_EQ(late.wrong(3), 0);
  EXPECT_EQ(late.failed(), 5);
  EXPECT_CONTAINS(late.text(), "rank 1 (host here)");
  EXPECT_CONTAINS(late.text(), "allreduce 'late0'");
  tfr_world_shutdown(world);
  EXPECT_EQ(gpu.alive(), 0);
  return check::CurrentFailures().count() == 0 ? 0 : 1;
}

TEST(a_peer_is_killed) {
  Processes job(3, "killed", "");
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(WEXITSTATUS(job.Wait(rank)), rank == 1 ? 9 : 0);
  }
}
