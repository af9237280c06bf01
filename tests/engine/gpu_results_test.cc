// Collectives of GPU tensors give what the same ones of CPU tensors give, by
// NCCL and staged, on the double of CUDA and NCCL.
#include <thread>
#include <vector>

#include "gpu_cases.h"
#include "gpu_ones.h"

using namespace tfring_test;

namespace {

void RunAllCases(JobOptions options, const Double& gpu, bool exact) {
  RunJob(options, [&](int rank, tfr_world* world) {
    ReductionCases(gpu, world, rank, options.size, exact);
  });
  EXPECT_EQ(gpu.alive(), 0);
}

void RunMovers(const JobOptions& options, const Double& gpu) {
  RunJob(options, [&](int rank, tfr_world* world) {
    MoverCases(gpu, world, rank, options.size);
  });
  EXPECT_EQ(gpu.alive(), 0);
}

}  // namespace

TEST(reductions_by_nccl) {
  const Double gpu;
  for (const int size : {1, 2, 3}) {
    JobOptions options = gpu.Options(size);
    options.gpu_data = TFR_GPU_NCCL;
    const int64_t before = gpu.nccl_calls();
    RunAllCases(options, gpu, false);
    EXPECT_GT(gpu.nccl_calls(), before);
  }
}

TEST(reductions_staged_have_the_bits_of_the_host) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_STAGED;
  options.nccl_library = "no such library";
  const int64_t before = gpu.nccl_calls();
  RunAllCases(options, gpu, true);
  EXPECT_EQ(gpu.nccl_calls(), before);
}

// Pieces of many sizes, that end in the middle of tensors.
TEST(reductions_staged_in_pieces_have_the_bits_of_the_host) {
  const Double gpu;
  for (const uint64_t chunk_bytes : {4096, 65536}) {
    for (const bool two_hosts : {false, true}) {
      JobOptions options = gpu.Options(3);
      options.gpu_data = TFR_GPU_STAGED;
      options.chunk_bytes = chunk_bytes;
      if (two_hosts) options.hosts = {"a", "a", "b"};
      RunJob(options, [&](int rank, tfr_world* world) {
        for (const int32_t op : {TFR_SUM, TFR_AVERAGE, TFR_MAX}) {
          for (const int32_t dtype : {TFR_FLOAT32, TFR_BFLOAT16, TFR_INT16}) {
            RunCase(gpu, world, rank, 3,
                    {TFR_ALLREDUCE, op, dtype, 100003, 1.0, 1.0, 0}, true);
          }
        }
        Spread(gpu, world, rank, 3);
      });
    }
  }
  EXPECT_EQ(gpu.alive(), 0);
}

// A ring of pieces is all the pinned memory that an allreduce takes, whatever
// its size.
TEST(pinned_memory_is_bounded) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_STAGED;
  options.chunk_bytes = 65536;
  RunJob(options, [&](int rank, tfr_world* world) {
    const GpuBuffer buffer(gpu, Bytes(8 << 20, '\1'));
    Call call;
    call.device = rank + 1;
    tfr_stats stats[2] = {};
    for (const int i : {0, 1}) {
      call.tensors = {
          {{(1 + 7 * i) << 20}, TFR_UINT8, buffer.data(), buffer.data()}};
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_OK);
      tfr_world_stats(world, &stats[i]);
    }
    EXPECT_GT(stats[0].staging_bytes, 3u * 65536);
    EXPECT_EQ(stats[1].staging_bytes, stats[0].staging_bytes);
    Bytes want(8 << 20, '\2');
    std::fill_n(want.begin(), 1 << 20, '\4');
    EXPECT_TRUE(buffer.Get() == want);
  });
}

TEST(transfer_counts_until_the_gpu_has_ended) {
  const Double gpu;
  for (const int32_t data : {TFR_GPU_NCCL, TFR_GPU_STAGED}) {
    JobOptions options = gpu.Options(2);
    options.gpu_data = data;
    RunJob(options, [&](int rank, tfr_world* world) {
      gpu.Slow(30'000);
      const GpuBuffer buffer(gpu, Bytes(400, '\0'));
      Call call;
      call.tensors = {{{100}, TFR_INT32, buffer.data(), buffer.data()}};
      call.device = rank + 1;
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_OK);
      tfr_stats stats = {};
      tfr_world_stats(world, &stats);
      EXPECT_GT(stats.transfer_ns, uint64_t{30'000'000});
    });
    gpu.Slow(0);
  }
}

TEST(reductions_by_nccl_inside_hosts) {
  const Double gpu;
  for (const bool alone : {false, true}) {
    JobOptions options = gpu.Options(alone ? 2 : 3);
    options.hosts = {"a", alone ? "b" : "a", "b"};
    options.gpu_hosts_by_tcp = true;
    options.chunk_bytes = alone ? 65536 : 0;  // in pieces, too
    RunAllCases(options, gpu, false);
  }
}

TEST(movers_by_nccl) {
  const Double gpu;
  for (const int size : {1, 2, 4}) {
    JobOptions options = gpu.Options(size);
    options.gpu_data = TFR_GPU_NCCL;
    RunMovers(options, gpu);
  }
}

TEST(movers_over_hosts) {
  const Double gpu;
  for (const bool by_tcp : {false, true}) {
    JobOptions options = gpu.Options(3);
    options.hosts = {"a", "b", "b"};
    options.gpu_hosts_by_tcp = by_tcp;
    const int64_t before = gpu.nccl_calls();
    RunMovers(options, gpu);
    // NCCL inside hosts would save them nothing: they are staged.
    EXPECT_EQ(gpu.nccl_calls() == before, by_tcp);
  }
}

TEST(movers_staged) {
  const Double gpu;
  JobOptions options = gpu.Options(3);
  options.gpu_data = TFR_GPU_STAGED;
  RunMovers(options, gpu);
}

TEST(without_premultiplied_sums_averages_are_staged) {
  const Double gpu(GPU_DOUBLE_OLD);
  RunAllCases(gpu.Options(2), gpu, false);
  EXPECT_GT(gpu.nccl_calls(), 0);
}

TEST(a_group_of_dtypes_is_one_collective) {
  const Double gpu;
  const JobOptions options = gpu.Options(2);
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<std::unique_ptr<GpuBuffer>> buffers;
    Call call;
    call.device = rank + 1;
    for (const int32_t dtype : {TFR_FLOAT32, TFR_INT64, TFR_UINT8}) {
      buffers.push_back(std::make_unique<GpuBuffer>(
          gpu, Bytes(64 * tfring::DtypeSize(dtype), '\0')));
      call.tensors.push_back(
          {{64}, dtype, buffers.back()->data(), buffers.back()->data()});
    }
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_OK);
    tfr_stats stats = {};
    tfr_world_stats(world, &stats);
    EXPECT_EQ(stats.collectives, 1u);
    EXPECT_EQ(stats.tensors, 3u);
  });
}

// Ranks submit in different orders, and do not wait: NCCL must see one order,
// and several collectives are under way at once.
TEST(many_at_once_in_any_order) {
  const Double gpu;
  gpu.Slow(200);
  constexpr int kMany = 60;
  const JobOptions options = gpu.Options(3);
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<std::unique_ptr<GpuBuffer>> buffers;
    Ends ends;
    gpu.Call("cudaSetDevice", rank);
    void* const stream = gpu.NewStream();
    for (int i = 0; i < kMany; ++i) {
      const int which = rank == 1 ? kMany - 1 - i : i;
      const std::vector<int32_t> value(100, which + rank);
      Bytes bytes(400);
      buffers.push_back(std::make_unique<GpuBuffer>(gpu, bytes.size()));
      // On the caller's stream, right before the request.
      gpu.CopyAsync(buffers.back()->data(), value.data(), 400, stream);
      Call call;
      call.name = "t" + std::to_string(which);
      call.tensors = {
          {{100}, TFR_INT32, buffers.back()->data(), buffers.back()->data()}};
      call.device = rank + 1;
      call.stream = stream;
      call.done = &Ends::Done;
      call.user = &ends;
      tfr_error error = {};
      EXPECT_EQ(call.Submit(world, &error), TFR_OK);
      gpu.Call("cudaStreamSynchronize", stream);  // `value` goes
    }
    ends.Await(kMany);
    EXPECT_EQ(ends.failed.load(), 0);
    for (int i = 0; i < kMany; ++i) {
      const int which = rank == 1 ? kMany - 1 - i : i;
      const Bytes got = buffers[static_cast<size_t>(i)]->Get();
      int32_t value = 0;
      std::memcpy(&value, got.data() + 396, 4);
      EXPECT_EQ(value, 3 * which + 3);
    }
    gpu.EndStream(stream);
  });
  EXPECT_EQ(gpu.alive(), 0);
}

// The input is still being made when the request comes.
TEST(inputs_are_waited_for) {
  const Double gpu;
  for (const int32_t data : {TFR_GPU_NCCL, TFR_GPU_STAGED}) {
    JobOptions options = gpu.Options(2);
    options.gpu_data = data;
    gpu.Slow(20'000);
    RunJob(options, [&](int rank, tfr_world* world) {
      gpu.Call("cudaSetDevice", rank);
      void* const stream = gpu.NewStream();
      const std::vector<float> value(1000, 1.5f);
      const GpuBuffer buffer(gpu, Bytes(4000, '\0'));
      for (int i = 0; i < 3; ++i) {
        gpu.CopyAsync(buffer.data(), value.data(), 4000, stream);
      }
      Call call;
      call.tensors = {{{1000}, TFR_FLOAT32, buffer.data(), buffer.data()}};
      call.device = rank + 1;
      call.stream = stream;
      tfr_error error = {};
      EXPECT_EQ(call.Run(world, &error), TFR_OK);
      EXPECT_EQ(ValueAt(buffer.Get(), TFR_FLOAT32, 999), 3.0);
      gpu.EndStream(stream);
    });
  }
}

// A group of tensors asks for an operation per dtype, when just as many
// operations as are kept exist already.
TEST(many_factors_and_then_a_group_of_dtypes) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_NCCL;
  for (const int factors : {63, 64}) {
    CASE("factors ", factors);
    RunJob(options, [&](int rank, tfr_world* world) {
      Bytes bytes(4);
      const float one = 1.0f;
      std::memcpy(bytes.data(), &one, 4);
      tfr_error error = {};
      for (int i = 2; i < factors + 2; ++i) {
        const GpuBuffer buffer(gpu, bytes);
        Call call;
        call.prescale = i;
        call.tensors = {{{1}, TFR_FLOAT32, buffer.data(), buffer.data()}};
        call.device = rank + 1;
        EXPECT_EQ(call.Run(world, &error), TFR_OK);
        EXPECT_EQ(ValueAt(buffer.Get(), TFR_FLOAT32, 0), 2.0 * i);
      }
      Bytes wide(8);
      const double two = 2.0;
      std::memcpy(wide.data(), &two, 8);
      const GpuBuffer first(gpu, bytes);
      const GpuBuffer second(gpu, wide);
      Call call;
      call.prescale = 1000;
      call.tensors = {{{1}, TFR_FLOAT32, first.data(), first.data()},
                      {{1}, TFR_FLOAT64, second.data(), second.data()}};
      call.device = rank + 1;
      EXPECT_EQ(call.Run(world, &error), TFR_OK);
      EXPECT_EQ(ValueAt(first.Get(), TFR_FLOAT32, 0), 2000.0);
      EXPECT_EQ(ValueAt(second.Get(), TFR_FLOAT64, 0), 4000.0);
    });
  }
}

TEST(process_sets_have_communicators_of_their_own) {
  const Double gpu;
  JobOptions options = gpu.Options(3);
  options.gpu_data = TFR_GPU_NCCL;
  RunJob(options, [&](int rank, tfr_world* world) {
    const std::vector<int32_t> ranks = {0, 2};
    int64_t set = 0;
    tfr_error error = {};
    ASSERT_EQ(tfr_process_set_add(world, ranks.data(), 2, &set, &error),
              TFR_OK);
    for (int i = 0; i < 10; ++i) {
      const std::vector<float> value(10, 1.0f);
      Bytes bytes(40);
      std::memcpy(bytes.data(), value.data(), 40);
      const GpuBuffer all(gpu, bytes);
      const GpuBuffer two(gpu, bytes);
      Call call;
      call.device = rank + 1;
      call.tensors = {{{10}, TFR_FLOAT32, all.data(), all.data()}};
      Ends ends;
      call.done = &Ends::Done;
      call.user = &ends;
      EXPECT_EQ(call.Submit(world, &error), TFR_OK);
      if (rank != 1) {
        call.process_set = set;
        call.tensors[0] = {{10}, TFR_FLOAT32, two.data(), two.data()};
        EXPECT_EQ(call.Run(world, &error), TFR_OK);
        EXPECT_EQ(ValueAt(two.Get(), TFR_FLOAT32, 9), 2.0);
      }
      ends.Await(1);
      EXPECT_EQ(ValueAt(all.Get(), TFR_FLOAT32, 9), 3.0);
    }
    EXPECT_EQ(tfr_process_set_remove(world, set, &error), TFR_OK);
  });
  EXPECT_EQ(gpu.alive(), 0);
}

// Staged ones are few at a time because of their memory, which those by NCCL do
// not have.
TEST(staged_ones_do_not_wait_for_those_of_nccl) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_NCCL;
  Meeting meeting(2);
  RunJob(options, [&](int rank, tfr_world* world) {
    const Ones first(gpu, rank + 1);
    std::string text;
    EXPECT_EQ(first.Run(world, &text), TFR_OK);
    meeting.Pass();
    gpu.Set("gpu_double_nccl_stuck", 1);
    meeting.Pass();
    ManyOnes by_nccl(gpu, rank + 1, 6);
    by_nccl.Submit(world);
    const GpuBuffer buffer(gpu, Bytes(16, '\1'));
    Ends ends;
    Call call;
    call.name = "staged";
    call.tensors = {{{8}, TFR_INT16, buffer.data(), buffer.data()}};
    call.device = rank + 1;
    call.done = &Ends::Done;
    call.user = &ends;
    tfr_error error = {};
    EXPECT_EQ(call.Submit(world, &error), TFR_OK);
    // The executor comes to this when it has done its part of the staged one.
    Call barrier;
    barrier.name = "barrier";
    barrier.kind = TFR_BARRIER;
    EXPECT_EQ(barrier.Run(world, &error), TFR_OK);
    meeting.Pass();
    gpu.Set("gpu_double_nccl_stuck", 0);
    by_nccl.Await();
    ends.Await(1);
    EXPECT_EQ(by_nccl.failed(), 0);
    EXPECT_EQ(by_nccl.wrong(2), 0);
    EXPECT_EQ(ends.failed.load(), 0);
    EXPECT_TRUE(buffer.Get() == Bytes(16, '\2'));
  });
  EXPECT_EQ(gpu.alive(), 0);
}

TEST(one_rank_has_joined) {
  const Double gpu;
  for (const bool met : {false, true}) {
    CASE("met before ", met);
    RunJob(gpu.Options(3), [&](int rank, tfr_world* world) {
      const std::vector<float> value(10, 4.0f);
      Bytes bytes(40);
      std::memcpy(bytes.data(), value.data(), 40);
      const GpuBuffer buffer(gpu, bytes);
      Call call;
      call.reduce_op = TFR_AVERAGE;
      call.tensors = {{{10}, TFR_FLOAT32, buffer.data(), buffer.data()}};
      call.device = rank + 1;
      tfr_error error = {};
      if (met) EXPECT_EQ(call.Run(world, &error), TFR_OK);
      if (rank != 1) EXPECT_EQ(call.Run(world, &error), TFR_OK);
      EXPECT_EQ(ValueAt(buffer.Get(), TFR_FLOAT32, 9), 4.0);
      Call join;
      join.kind = TFR_JOIN;
      EXPECT_EQ(join.Run(world, &error), TFR_OK);
      EXPECT_EQ(call.Run(world, &error), TFR_OK);
      EXPECT_EQ(ValueAt(buffer.Get(), TFR_FLOAT32, 9), 4.0);
    });
  }
}
