// What goes wrong with GPUs and NCCL: one clear error on every rank, nothing
// that hangs, nothing left behind. On the double of CUDA and NCCL.
#include <cstdlib>
#include <thread>
#include <vector>

#include "gpu_job.h"
#include "gpu_ones.h"

using namespace tfring_test;

namespace {

// Each rank runs one allreduce, which must give `code` and a text with `part`.
void ExpectAll(const Double& gpu, const JobOptions& options, int code,
               const std::string& part) {
  RunJob(options, [&](int rank, tfr_world* world) {
    CASE("rank ", rank);
    const Ones ones(gpu, rank + 1);
    for (int i = 0; i < 2; ++i) {  // the second meets what the first found
      std::string text;
      EXPECT_EQ(ones.Run(world, &text), code);
      EXPECT_CONTAINS(text, part);
      if (code == TFR_OK)
        EXPECT_EQ(ones.Value(),
                  i == 0 ? options.size : options.size * options.size);
    }
    // Collectives of host memory go on.
    if (code == TFR_UNAVAILABLE) return;
    int32_t value = 1;
    Call call;
    call.name = "host";
    call.tensors = {{{}, TFR_INT32, &value, &value}};
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_OK);
    EXPECT_EQ(value, options.size);
  });
  EXPECT_EQ(gpu.alive(), 0);
}

// NCCL cannot be used: tensors are staged, unless it is wanted by setting.
void ExpectStagedOrError(const Double& gpu, JobOptions options,
                         const std::string& part) {
  ExpectAll(gpu, options, TFR_OK, "");
  options.gpu_data = TFR_GPU_NCCL;
  ExpectAll(gpu, options, TFR_FAILED_PRECONDITION, part);
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

}  // namespace

TEST(no_cuda) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.cudart_library = "/nowhere/libcudart.so";
  ExpectAll(gpu, options, TFR_INVALID_ARGUMENT,
            "the CUDA run-time library cannot be loaded: "
            "/nowhere/libcudart.so: cannot open shared object file");
}

TEST(no_nccl) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.nccl_library = "/nowhere/libnccl.so.2";
  ExpectStagedOrError(gpu, options,
                      "cannot: rank 0 (host here): NCCL cannot be loaded: "
                      "/nowhere/libnccl.so.2");
}

// It can be loaded, but is another library.
TEST(not_cuda) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.cudart_library = "libm.so.6";
  ExpectAll(gpu, options, TFR_INVALID_ARGUMENT,
            "libm.so.6 has no cudaGetDeviceCount. Run `pip install "
            "'.[gpu]'` in tfring's folder, or set TFRING_CUDART_LIBRARY");
}

TEST(not_nccl) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.nccl_library = "libm.so.6";
  ExpectStagedOrError(gpu, options,
                      "cannot: rank 0 (host here): libm.so.6 has no "
                      "ncclGetVersion. Run `pip install");
}

TEST(nccl_is_too_old) {
  const Double gpu;
  gpu.Set("gpu_double_nccl_version", 21701);
  ExpectStagedOrError(gpu, gpu.Options(2),
                      "is NCCL 2.17.1, but 2.18.0 or later is needed");
}

TEST(no_such_device) {
  const Double gpu;
  RunJob(gpu.Options(2), [&](int rank, tfr_world* world) {
    const Ones ones(gpu, rank == 0 ? 1 : 100);
    std::string text;
    EXPECT_EQ(ones.Run(world, &text), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(text, "rank 1: there is no CUDA device 99; CUDA sees 8");
  });
}

TEST(a_second_device) {
  const Double gpu;
  RunJob(gpu.Options(2), [&](int rank, tfr_world* world) {
    const Ones first(gpu, rank + 1);
    const Ones second(gpu, rank == 0 ? 1 : 3);
    std::string text;
    EXPECT_EQ(first.Run(world, &text), TFR_OK);
    EXPECT_EQ(second.Run(world, &text), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(text, "rank 1: its tensors are on CUDA device 2, but");
    EXPECT_EQ(first.Run(world, &text), TFR_OK);
  });
}

TEST(host_memory_meets_a_gpu) {
  const Double gpu;
  RunJob(gpu.Options(2), [&](int rank, tfr_world* world) {
    Ones ones(gpu, 1);
    int32_t values[64] = {};
    if (rank == 1) {
      ones.call.device = 0;
      ones.call.tensors[0].input = values;
      ones.call.tensors[0].output = values;
    }
    std::string text;
    EXPECT_EQ(ones.Run(world, &text), TFR_FAILED_PRECONDITION);
    EXPECT_CONTAINS(text, "int32 (64,), op=Sum, on a GPU");
  });
}

// Whatever becomes of a request, the event that marked its place is used again.
TEST(events_go_back) {
  const Double gpu;
  for (const bool matches : {false, true}) {
    CASE("matches ", matches);
    JobOptions options = gpu.Options(2);
    options.gpu_data = TFR_GPU_NCCL;
    if (matches) options.nccl_library = "/nowhere/libnccl.so.2";
    Meeting meeting(2);
    RunJob(options, [&](int rank, tfr_world* world) {
      int64_t before = 0;
      for (int i = 0; i < 60; ++i) {
        Ones ones(gpu, rank + 1, "odd");
        if (!matches) ones.call.tensors[0].dims = {rank == 0 ? 64 : 32};
        std::string text;
        EXPECT_EQ(ones.Run(world, &text), TFR_FAILED_PRECONDITION);
        meeting.Pass();
        if (i == 9) before = gpu.alive();
        meeting.Pass();
      }
      EXPECT_LT(gpu.alive() - before, 4);  // 50 would be a leak of each
    });
    EXPECT_EQ(gpu.alive(), 0);
  }
}

TEST(ranks_share_a_gpu) {
  const Double gpu;
  for (const bool enabled : {false, true}) {
    CASE("enabled ", enabled);
    const Variable variable("NCCL_MULTI_RANK_GPU_ENABLE", enabled ? "1" : "0");
    for (const int32_t data : {TFR_GPU_AUTO, TFR_GPU_NCCL}) {
      JobOptions options = gpu.Options(2);
      options.gpu_data = data;
      const int64_t before = gpu.nccl_calls();
      const bool fails = !enabled && data == TFR_GPU_NCCL;
      RunJob(options, [&](int, tfr_world* world) {
        const Ones ones(gpu, 4);
        std::string text;
        EXPECT_EQ(ones.Run(world, &text),
                  fails ? TFR_FAILED_PRECONDITION : TFR_OK);
        if (fails) {
          EXPECT_CONTAINS(text,
                          "ranks 0 and 1 of host here use one GPU "
                          "(0000:03:00.0), which NCCL 2.32.3 does only with "
                          "NCCL_MULTI_RANK_GPU_ENABLE=1");
        }
      });
      EXPECT_EQ(gpu.nccl_calls() > before, enabled);
    }
  }
}

TEST(communicator_does_not_come_to_be) {
  const Double gpu;
  gpu.Set("gpu_double_nccl_hangs", 1);
  JobOptions options = gpu.Options(2);
  options.start_timeout_s = 1.5;
  ExpectStagedOrError(gpu, options,
                      "rank 0 cannot make an NCCL communicator: NCCL was not "
                      "done in time");
}

// The first rank's setting counts, for all ranks.
TEST(settings_differ_and_no_communicator_comes_to_be) {
  const Double gpu;
  gpu.Set("gpu_double_nccl_hangs", 1);
  for (const int32_t first : {TFR_GPU_AUTO, TFR_GPU_NCCL}) {
    CASE("first rank's setting ", first);
    JobOptions options = gpu.Options(2);
    options.start_timeout_s = 1.5;
    const int32_t second = TFR_GPU_AUTO + TFR_GPU_NCCL - first;
    const bool fails = first == TFR_GPU_NCCL;
    options.gpu_data_of = {first, second};
    ExpectAll(gpu, options, fails ? TFR_FAILED_PRECONDITION : TFR_OK,
              fails ? "cannot make an NCCL communicator" : "");
  }
}

TEST(one_rank_is_set_to_host_memory) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data_of = {TFR_GPU_AUTO, TFR_GPU_STAGED};
  ExpectAll(gpu, options, TFR_OK, "");
  options.gpu_data_of[0] = TFR_GPU_NCCL;
  ExpectAll(gpu, options, TFR_FAILED_PRECONDITION,
            "cannot: rank 1 (host here): its setting is TFRING_GPU_DATA=host");
}

TEST(nccl_reports_an_error) {
  const Double gpu;
  const int64_t aborts = gpu.aborts();
  JobOptions options = gpu.Options(3);
  options.gpu_data = TFR_GPU_NCCL;
  Meeting meeting(3);
  RunJob(options, [&](int rank, tfr_world* world) {
    CASE("rank ", rank);
    const Ones ones(gpu, rank + 1, "grads");
    std::string text;
    EXPECT_EQ(ones.Run(world, &text), TFR_OK);
    meeting.Pass();
    if (rank == 1) gpu.Set("gpu_double_nccl_error", 1, 6);
    meeting.Pass();
    EXPECT_EQ(ones.Run(world, &text), TFR_UNAVAILABLE);
    EXPECT_CONTAINS(text,
                    "rank 1, GPU 0000:01:00.0: allreduce 'grads': NCCL: "
                    "remote process exited or there was a network error "
                    "(ncclResult 6): told by the double");
    // The world has ended, for host memory, too.
    EXPECT_EQ(ones.Run(world, &text), TFR_UNAVAILABLE);
  });
  EXPECT_EQ(gpu.aborts(), aborts + 3);
  EXPECT_EQ(gpu.alive(), 0);
}

TEST(takes_too_long) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.fail_after_s = 1;
  options.gpu_data = TFR_GPU_NCCL;
  Meeting meeting(2);
  RunJob(options, [&](int rank, tfr_world* world) {
    const Ones ones(gpu, rank + 1, "slow");
    std::string text;
    EXPECT_EQ(ones.Run(world, &text), TFR_OK);
    meeting.Pass();
    gpu.Slow(2'000'000);
    std::thread quicker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      gpu.Slow(0);
    });
    EXPECT_EQ(ones.Run(world, &text), TFR_UNAVAILABLE);
    quicker.join();
    EXPECT_CONTAINS(text, "allreduce 'slow'");
    EXPECT_CONTAINS(text, "did not end on the GPU within 1 s");
  });
  EXPECT_EQ(gpu.alive(), 0);
}

TEST(no_pinned_memory) {
  const Double gpu;
  gpu.Set("gpu_double_pinned_limit", uint64_t{0});
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_STAGED;
  ExpectAll(gpu, options, TFR_UNAVAILABLE,
            "no pinned memory of 4096 bytes: cudaHostAlloc failed: out of "
            "memory");
}

TEST(no_memory_for_an_output) {
  const Double gpu;
  for (const int32_t data : {TFR_GPU_NCCL, TFR_GPU_STAGED}) {
    JobOptions options = gpu.Options(2);
    options.gpu_data = data;
    RunJob(options, [&](int rank, tfr_world* world) {
      const GpuBuffer input(gpu, Bytes(16, 'x'));
      GpuOutputs outputs(gpu, {4});
      Call call;
      call.kind = TFR_ALLGATHER;
      call.tensors = {{{4}, TFR_INT32, input.data(), nullptr}};
      call.allocate = &GpuOutputs::Allocate;
      if (rank == 1)
        call.allocate = [](void*, int32_t, int64_t) -> void* {
          return nullptr;
        };
      call.user = &outputs;
      call.device = rank + 1;
      tfr_error error = {};
      const int code = call.Run(world, &error);
      EXPECT_EQ(code, rank == 1 || data == TFR_GPU_NCCL ? TFR_RESOURCE_EXHAUSTED
                                                        : TFR_OK);
      std::string text;
      const Ones ones(gpu, rank + 1);
      EXPECT_EQ(ones.Run(world, &text), TFR_OK);
    });
  }
}

// Leaves while the other's kernels still run, and nothing is lost.
TEST(leaving_waits_for_what_is_under_way) {
  const Double gpu;
  JobOptions options = gpu.Options(2);
  options.gpu_data = TFR_GPU_NCCL;
  Ends ends[2];
  std::vector<std::unique_ptr<Ones>> all[2];
  Meeting meeting(2);
  RunJob(options, [&](int rank, tfr_world* world) {
    gpu.Slow(5000);
    for (int i = 0; i < 20; ++i) {
      auto& mine = all[rank];
      mine.push_back(std::make_unique<Ones>(gpu, rank + 1));
      mine.back()->call.done = &Ends::Done;
      mine.back()->call.user = &ends[rank];
      tfr_error error = {};
      EXPECT_EQ(mine.back()->call.Submit(world, &error), TFR_OK);
    }
    meeting.Pass();
    if (rank == 0) ends[0].Await(20);
  });
  EXPECT_EQ(ends[1].count.load(), 20);
  EXPECT_EQ(ends[0].failed.load(), 0);
  EXPECT_EQ(all[0].back()->Value(), 2);
  EXPECT_EQ(gpu.alive(), 0);
}
