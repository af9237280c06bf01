// The function that XLA calls on CUDA, as it is, on the double of CUDA and
// NCCL. Ranks are processes, since a process has one world for all such calls.
#include <string>
#include <vector>

#include "gpu_xla_cases.h"
#include "processes.h"

using namespace tfring_test;

namespace {

// A rank of two on the double.
class Rank {
 public:
  Rank(int rank, const std::string& store, int32_t data) {
    JobOptions options = gpu_.Options(2);
    options.gpu_data = data;
    const tfr_config config = ConfigOf(options, rank, store);
    tfr_error error = {};
    EXPECT_EQ(tfr_world_create(&config, &world_, &error), TFR_OK);
    EXPECT_EQ(std::string(error.text), std::string());
    at_ = std::make_unique<XlaRank>(gpu_, rank, world_);
  }
  // The role's exit code.
  int Leave() {
    at_.reset();
    tfr_world_shutdown(world_);
    EXPECT_EQ(gpu_.alive(), 0);
    return check::CurrentFailures().count() == 0 ? 0 : 1;
  }

  const XlaRank& at() const { return *at_; }
  const Double& gpu() const { return gpu_; }

 private:
  const Double gpu_;
  tfr_world* world_ = nullptr;
  std::unique_ptr<XlaRank> at_;
};

int32_t DataOf(const std::string& argument) {
  return argument == "nccl" ? TFR_GPU_NCCL : TFR_GPU_STAGED;
}

}  // namespace

// "nccl" or "host".
ROLE(all_kinds) {
  Rank mine(rank, store, DataOf(argument));
  for (const bool known : {true, false}) {
    CASE("rank ", rank, ", ", argument, ", dimensions known ", known);
    mine.gpu().Slow(500);
    Reductions(mine.at(), known);
    Movers(mine.at(), known);
    mine.gpu().Slow(0);
  }
  Others(mine.at());
  EXPECT_EQ(mine.gpu().nccl_calls() > 0, argument == "nccl");
  return mine.Leave();
}

TEST(all_kinds_by_nccl) {
  EXPECT_TRUE(RunProcesses(2, "all_kinds", "nccl") == std::vector<int>(2));
}
TEST(all_kinds_staged) {
  EXPECT_TRUE(RunProcesses(2, "all_kinds", "host") == std::vector<int>(2));
}

// More than is fetched at once.
ROLE(long_line) {
  Rank mine(rank, store, TFR_GPU_NCCL);
  const XlaRank& at = mine.at();
  CustomCall sum = at.Call(TFR_ALLREDUCE);
  sum.call.reduce_op = TFR_SUM;
  for (int i = 0; i < 100; ++i) {
    sum.operands.push_back({TFR_INT32, {1}, BytesOf<int32_t>({i}), 4});
  }
  sum.call.name = std::string(300, 'n');
  EXPECT_EQ(sum.Run(), std::string());
  at.ExpectWaits(sum, 2);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sum.Result<int32_t>(static_cast<size_t>(i))[0], 2 * i);
  }
  return mine.Leave();
}
TEST(a_long_line) {
  EXPECT_TRUE(RunProcesses(2, "long_line") == std::vector<int>(2));
}

ROLE(ragged) {
  Rank mine(rank, store, DataOf(argument));
  RaggedUnderXla(mine.at());
  return mine.Leave();
}
TEST(ragged_by_nccl) {
  EXPECT_TRUE(RunProcesses(2, "ragged", "nccl") == std::vector<int>(2));
}
TEST(ragged_staged) {
  EXPECT_TRUE(RunProcesses(2, "ragged", "host") == std::vector<int>(2));
}

// The device that the calling thread uses says nothing of where tensors are.
ROLE(other_device_is_current) {
  Rank mine(rank, store, DataOf(argument));
  const GpuLibrary& gpu = mine.gpu();
  CustomCall sum = mine.at().Call(TFR_ALLREDUCE);
  sum.call.reduce_op = TFR_SUM;
  sum.operands = {{TFR_INT32, {1}, BytesOf<int32_t>({1 + rank}), 4}};
  sum.before = [&] { gpu.Call("cudaSetDevice", 5); };
  sum.after = [&] {
    int device = -1;
    gpu.Call("cudaGetDevice", &device);
    EXPECT_EQ(device, 5);
    gpu.Call("cudaSetDevice", gpu.DeviceOf(rank) - 1);
  };
  EXPECT_EQ(sum.Run(), std::string());
  EXPECT_EQ(sum.Result<int32_t>(0)[0], 3);
  return mine.Leave();
}
TEST(other_device_is_current_by_nccl) {
  EXPECT_TRUE(RunProcesses(2, "other_device_is_current", "nccl") ==
              std::vector<int>(2));
}
TEST(other_device_is_current_staged) {
  EXPECT_TRUE(RunProcesses(2, "other_device_is_current", "host") ==
              std::vector<int>(2));
}

ROLE(lost) {
  Rank mine(rank, store, TFR_GPU_NCCL);
  const XlaRank& at = mine.at();
  CustomCall sum = at.Call(TFR_ALLREDUCE);
  sum.operands = {{TFR_INT32, {1}, BytesOf<int32_t>({1}), 4}};
  sum.call.reduce_op = TFR_SUM;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sum.Run(), std::string());
  if (rank == 1) _exit(9);
  const int64_t began = tfring::NowNs();
  const std::string text = sum.Run();
  EXPECT_LT(tfring::NowNs() - began, int64_t{5'000'000'000});
  EXPECT_CONTAINS(text, "rank 1 (host here)");
  EXPECT_CONTAINS(text, "allreduce 'xla'");
  EXPECT_CONTAINS(text, "[tfring: ABORTED]");
  return mine.Leave();
}
TEST(a_peer_is_lost) {
  Processes job(2, "lost", "");
  EXPECT_EQ(job.Wait(0), 0);
  EXPECT_EQ(WEXITSTATUS(job.Wait(1)), 9);
}

namespace {

// A call of one rank whose line is `line`.
std::string RunAlone(const JobOptions& options, const Double& gpu,
                     const Bytes& line) {
  std::string text;
  RunJob(options, [&](int, tfr_world* world) {
    tfring_tf_set_world(world, "");
    const GpuBuffer config(gpu, line);
    void* buffers[] = {config.data(), config.data(), config.data()};
    tfring::XlaStatus status;
    tfring::XlaGpuTarget(nullptr, buffers, nullptr, 0, &status);
    text = status.message.value_or("");
    tfring_tf_set_world(nullptr, "gone");
  });
  return text;
}

}  // namespace

TEST(no_cuda) {
  const Double gpu;
  JobOptions options = gpu.Options(1);
  options.cudart_library = "/nowhere/libcudart.so";
  const std::string text =
      RunAlone(options, gpu, Bytes(tfring::kXlaLeastBytes));
  EXPECT_CONTAINS(text,
                  "the CUDA run-time library cannot be loaded: "
                  "/nowhere/libcudart.so: cannot open");
  EXPECT_CONTAINS(text, "TFRING_CUDART_LIBRARY");
  EXPECT_CONTAINS(text, "[tfring: FAILED_PRECONDITION]");
}

TEST(memory_of_the_host) {
  const Double gpu;
  std::string text;
  RunJob(gpu.Options(1), [&](int, tfr_world* world) {
    tfring_tf_set_world(world, "");
    Bytes line(tfring::kXlaLeastBytes);
    void* buffers[] = {line.data(), line.data(), line.data()};
    tfring::XlaStatus status;
    tfring::XlaGpuTarget(nullptr, buffers, nullptr, 0, &status);
    text = status.message.value_or("");
    tfring_tf_set_world(nullptr, "gone");
  });
  EXPECT_CONTAINS(text, "memory of a GPU was expected");
  EXPECT_CONTAINS(text, "[tfring: INVALID_ARGUMENT]");
}

TEST(no_such_line) {
  const Double gpu;
  EXPECT_EQ(
      RunAlone(gpu.Options(1), gpu, Bytes(tfring::kXlaLeastBytes, 'x')),
      std::string("tfring cannot read its custom call [tfring: INTERNAL]"));
}
