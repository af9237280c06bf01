// Calls of the function that XLA calls on CUDA, for two ranks, on the double or
// on a real GPU.
#ifndef TFRING_TESTS_ENGINE_GPU_XLA_CASES_H_
#define TFRING_TESTS_ENGINE_GPU_XLA_CASES_H_

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/tensorflow/adapter.h"
#include "custom_ops/tensorflow/xla_call.h"
#include "custom_ops/tensorflow/xla_gpu.h"
#include "gpu_job.h"

namespace tfring_test {

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  const auto* const data = reinterpret_cast<const char*>(values.data());
  return Bytes(data, data + values.size() * sizeof(T));
}

struct Operand {
  int32_t dtype;
  std::vector<int64_t> dims;
  Bytes value;
  size_t result_bytes;
};

// One custom call: what XLA would hold for it on a GPU.
class CustomCall {
 public:
  tfring::XlaCall call;  // `tensors` is left empty
  std::vector<Operand> operands;
  bool dims_are_known = true;
  std::function<void()> before;  // right before and after the call
  std::function<void()> after;

  CustomCall(const GpuLibrary& gpu, int32_t kind, void* stream) : gpu_(gpu) {
    call.kind = kind;
    call.name = "xla";
    stream_ = stream;
  }

  // The error's text; empty: none.
  std::string Run() {
    std::vector<void*> buffers = {Put(Line())};
    // Inputs come on the stream, right before the call.
    for (const Operand& operand : operands) {
      buffers.push_back(Put(Bytes(operand.value.size())));
      gpu_.CopyAsync(buffers.back(), operand.value.data(), operand.value.size(),
                     stream_);
    }
    buffers.push_back(Put(Bytes(4)));  // the token
    if (!dims_are_known) buffers.push_back(Put(BytesOf(Dims())));
    results_.clear();
    if (call.kind >= tfring::kXlaFirstQuery) results_ = {Bytes(4)};
    for (const Operand& operand : operands) {
      results_.emplace_back(operand.result_bytes);
    }
    std::vector<void*> places;
    for (const Bytes& result : results_) places.push_back(Put(result));
    buffers.insert(buffers.end(), places.begin(), places.end());
    buffers.push_back(buffers[operands.size() + 1]);
    tfring::XlaStatus status;
    const int64_t waits = gpu_.waits();
    if (before) before();
    tfring::XlaGpuTarget(stream_, buffers.data(), nullptr, 0, &status);
    if (after) after();
    waits_ = gpu_.waits() - waits;
    for (size_t i = 0; i < places.size(); ++i) {
      gpu_.Copy(results_[i].data(), places[i], results_[i].size());
    }
    return status.message.value_or("");
  }

  template <typename T>
  std::vector<T> Result(size_t i) const {
    std::vector<T> values(results_[i].size() / sizeof(T));
    std::memcpy(values.data(), results_[i].data(), results_[i].size());
    return values;
  }
  // How often the call waited for the stream.
  int64_t waits() const { return waits_; }

 private:
  void* Put(const Bytes& bytes) {
    memory_.push_back(std::make_unique<GpuBuffer>(gpu_, bytes));
    return memory_.back()->data();
  }

  std::vector<int32_t> Dims() const {
    std::vector<int32_t> dims;
    for (const Operand& operand : operands) {
      dims.insert(dims.end(), operand.dims.begin(), operand.dims.end());
    }
    return dims;
  }

  // As tfring/_xla_module.py writes it.
  Bytes Line() const {
    int64_t pre = 0;
    int64_t post = 0;
    std::memcpy(&pre, &call.prescale, 8);
    std::memcpy(&post, &call.postscale, 8);
    std::string line = tfring::StrCat(
        " ", call.kind, " ", call.process_set, " ", call.reduce_op, " ",
        call.root, " ", pre, " ", post, " ", call.wire_dtype, " ", call.ranks,
        " ", call.place, " ", operands.size());
    for (const Operand& operand : operands) {
      line += tfring::StrCat(" ", operand.dtype, " ", operand.dims.size());
      for (const int64_t dim : operand.dims) {
        line += tfring::StrCat(" ", dims_are_known ? dim : -1);
      }
    }
    line += " ";
    for (const char c : call.name) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x", c);
      line += digits;
    }
    char size[16];
    std::snprintf(size, sizeof(size), "%08zu",
                  line.size() + tfring::kXlaSizeDigits + 1);
    line = size + line;
    Bytes bytes(line.begin(), line.end());
    bytes.resize(std::max(bytes.size() + 1, tfring::kXlaLeastBytes));
    return bytes;
  }

  const GpuLibrary& gpu_;
  void* stream_;
  std::vector<std::unique_ptr<GpuBuffer>> memory_;
  std::vector<Bytes> results_;
  int64_t waits_ = 0;
};

// The process of one rank of two: its world in use and its GPU current.
class XlaRank {
 public:
  XlaRank(const GpuLibrary& library, int number, tfr_world* world)
      : gpu(library), rank(number) {
    tfring_tf_set_world(world, "");
    gpu.Call("cudaSetDevice", gpu.DeviceOf(rank) - 1);
    stream = gpu.NewStream();
  }
  ~XlaRank() {
    gpu.EndStream(stream);
    tfring_tf_set_world(nullptr, "gone");
  }
  XlaRank(const XlaRank&) = delete;
  XlaRank& operator=(const XlaRank&) = delete;

  CustomCall Call(int32_t kind) const { return {gpu, kind, stream}; }
  void ExpectWaits(const CustomCall& call, int64_t waits) const {
    if (gpu.is_double()) EXPECT_EQ(call.waits(), waits);
  }

  const GpuLibrary& gpu;
  const int rank;
  void* stream = nullptr;
};

inline void Reductions(const XlaRank& at, bool known) {
  const int rank = at.rank;
  CustomCall sum = at.Call(TFR_ALLREDUCE);
  sum.dims_are_known = known;
  sum.call.reduce_op = TFR_SUM;
  sum.operands = {
      {TFR_FLOAT32, {2, 1}, BytesOf<float>({1.5f, rank + 0.f}), 8},
      {TFR_INT64, {1}, BytesOf<int64_t>({7 + rank}), 8},
  };
  EXPECT_EQ(sum.Run(), std::string());
  EXPECT_TRUE(sum.Result<float>(0) == (std::vector<float>{3.f, 1.f}));
  EXPECT_TRUE(sum.Result<int64_t>(1) == (std::vector<int64_t>{15}));
  at.ExpectWaits(sum, known ? 1 : 2);

  CustomCall scaled = at.Call(TFR_ALLREDUCE);
  scaled.dims_are_known = known;
  scaled.call.reduce_op = TFR_AVERAGE;
  scaled.call.prescale = 0.5;
  scaled.operands = {{TFR_FLOAT64, {1}, BytesOf<double>({8.0 * rank}), 8}};
  EXPECT_EQ(scaled.Run(), std::string());
  EXPECT_EQ(scaled.Result<double>(0)[0], 2.0);

  CustomCall scatter = at.Call(TFR_REDUCESCATTER);
  scatter.dims_are_known = known;
  scatter.call.reduce_op = TFR_SUM;
  scatter.operands = {{TFR_INT32,
                       {3},
                       BytesOf<int32_t>({1, 2, 3}),
                       rank == 0 ? size_t{8} : size_t{4}}};
  EXPECT_EQ(scatter.Run(), std::string());
  EXPECT_TRUE(
      scatter.Result<int32_t>(0) ==
      (rank == 0 ? std::vector<int32_t>{2, 4} : std::vector<int32_t>{6}));
}

// An allgather of one tensor of these rows, of one int32 each.
inline CustomCall Gather(const XlaRank& at, const std::vector<int32_t>& rows) {
  CustomCall gather = at.Call(TFR_ALLGATHER);
  const auto count = static_cast<int64_t>(rows.size());
  gather.operands = {
      {TFR_INT32, {count}, BytesOf(rows), 2 * 4 * rows.size()},
      {TFR_INT64, {1, 1}, BytesOf<int64_t>({count}), 16},  // its rows
  };
  return gather;
}

inline CustomCall Exchange(const XlaRank& at,
                           const std::vector<int32_t>& rows) {
  CustomCall exchange = at.Call(TFR_ALLTOALL);
  exchange.operands = {{TFR_INT32,
                        {static_cast<int64_t>(rows.size())},
                        BytesOf(rows),
                        4 * rows.size()}};
  return exchange;
}

inline void Movers(const XlaRank& at, bool known) {
  const int rank = at.rank;
  CustomCall gather = Gather(at, {rank, 5});
  gather.dims_are_known = known;
  EXPECT_EQ(gather.Run(), std::string());
  EXPECT_TRUE(gather.Result<int32_t>(0) == (std::vector<int32_t>{0, 5, 1, 5}));
  at.ExpectWaits(gather, known ? 2 : 3);

  CustomCall spread = at.Call(TFR_BROADCAST);
  spread.dims_are_known = known;
  spread.call.root = 1;
  spread.operands = {{TFR_INT16, {2}, BytesOf<int16_t>({4, 5}), 4}};
  if (rank == 0) spread.operands[0].value = Bytes(4);
  EXPECT_EQ(spread.Run(), std::string());
  EXPECT_TRUE(spread.Result<int16_t>(0) == (std::vector<int16_t>{4, 5}));

  CustomCall exchange = Exchange(at, {10 * rank, 10 * rank + 1});
  exchange.dims_are_known = known;
  EXPECT_EQ(exchange.Run(), std::string());
  EXPECT_TRUE(exchange.Result<int32_t>(0) ==
              (std::vector<int32_t>{rank, 10 + rank}));
}

inline void Others(const XlaRank& at) {
  const int rank = at.rank;
  EXPECT_EQ(at.Call(TFR_BARRIER).Run(), std::string());
  EXPECT_EQ(at.Call(tfring::kXlaProbe).Run(), std::string());
  EXPECT_EQ(at.Call(tfring::kXlaProbeFails).Run(),
            std::string("a probe's error [tfring: ABORTED]"));
  CustomCall query = at.Call(tfring::kXlaFirstQuery + 1);
  EXPECT_EQ(query.Run(), std::string());
  EXPECT_EQ(query.Result<int32_t>(0)[0], rank);
  CustomCall checked = at.Call(tfring::kXlaCheck);
  checked.call.name = "values are wrong";
  checked.operands = {{TFR_FLOAT32, {2}, BytesOf<float>({4.f, 0.f}), 8}};
  EXPECT_EQ(checked.Run(), std::string());
  EXPECT_EQ(checked.Result<float>(0)[0], 4.f);
  checked.operands[0].value = BytesOf<float>({4.f, 1.f});
  EXPECT_EQ(checked.Run(),
            std::string("values are wrong [tfring: INVALID_ARGUMENT]"));
}

constexpr const char* kUneven =
    "`tensor` must have the same first dimension on all ranks where ";

inline void RaggedUnderXla(const XlaRank& at) {
  const auto rows = static_cast<size_t>(at.rank + 1);
  CustomCall gather = Gather(at, std::vector<int32_t>(rows));
  const std::string gathered = gather.Run();
  EXPECT_CONTAINS(gathered, kUneven);
  EXPECT_CONTAINS(gathered,
                  "allgather is compiled by XLA (xla). Received: "
                  "first dimensions 1, 2, by rank");
  EXPECT_CONTAINS(gathered, "[tfring: INVALID_ARGUMENT]");
  CustomCall exchange = Exchange(at, std::vector<int32_t>(2 * rows));
  const std::string exchanged = exchange.Run();
  EXPECT_CONTAINS(exchanged, kUneven);
  EXPECT_CONTAINS(exchanged, "first dimensions 2, 4, by rank");
  Movers(at, true);  // the world is as good as before
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_GPU_XLA_CASES_H_
