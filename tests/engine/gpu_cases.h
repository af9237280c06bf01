// What is checked of collectives of GPU tensors: that they give what the same
// ones of host memory give. For the double and for real GPUs.
#ifndef TFRING_TESTS_ENGINE_GPU_CASES_H_
#define TFRING_TESTS_ENGINE_GPU_CASES_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "custom_ops/core/common/half_scalar.h"
#include "gpu_job.h"

namespace tfring_test {

inline double ValueAt(const Bytes& bytes, int32_t dtype, size_t i) {
  const char* const at = bytes.data() + i * tfring::DtypeSize(dtype);
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype) {
    case TFR_FLOAT16:
      return tfring::half_scalar::ToFloat(read(tfring::Float16{}));
    case TFR_BFLOAT16:
      return tfring::half_scalar::ToFloat(read(tfring::BFloat16{}));
    case TFR_FLOAT32:
      return read(float{});
    default:
      return read(double{});
  }
}

// Of one: how far two results of floats may be apart for each unit of what was
// added, since NCCL rounds after each step and rounds the factor.
inline double Tolerance(int32_t dtype, int size) {
  const double unit = dtype == TFR_FLOAT16    ? 0x1p-11
                      : dtype == TFR_BFLOAT16 ? 0x1p-8
                      : dtype == TFR_FLOAT32  ? 0x1p-24
                                              : 0x1p-53;
  return unit * (size + 2);
}

inline double Largest(const Bytes& bytes, int32_t dtype) {
  double most = 0;
  for (size_t i = 0; i < bytes.size() / tfring::DtypeSize(dtype); ++i) {
    most = std::max(most, std::fabs(ValueAt(bytes, dtype, i)));
  }
  return most;
}

// Equal bits, but for floats: near enough for what was added up.
inline void ExpectAlike(const Bytes& got, const Bytes& want, const Bytes& input,
                        int32_t dtype, int size) {
  ASSERT_EQ(got.size(), want.size());
  if (!tfring::IsFloating(dtype)) {
    EXPECT_TRUE(got == want);
    return;
  }
  const double scale = 1 + size * Largest(input, dtype) + Largest(want, dtype);
  for (size_t i = 0; i < got.size() / tfring::DtypeSize(dtype); ++i) {
    const double a = ValueAt(got, dtype, i);
    const double b = ValueAt(want, dtype, i);
    if (std::fabs(a - b) <= Tolerance(dtype, size) * scale) continue;
    EXPECT_EQ(a, b);
    return;
  }
}

// An allreduce or reducescatter, of host memory and of a GPU's.
struct Case {
  int32_t kind;
  int32_t op;
  int32_t dtype;
  int64_t count;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t wire = 0;
};

inline bool Allowed(const Case& one, int size) {
  const bool scaled = one.prescale != 1.0 || one.postscale != 1.0;
  const bool sums = one.op == TFR_SUM || one.op == TFR_AVERAGE;
  if (one.dtype == TFR_BOOL && (sums || scaled)) return false;
  if (one.op == TFR_ADASUM) {
    return tfring::IsFloating(one.dtype) && (size & (size - 1)) == 0 &&
           one.kind == TFR_ALLREDUCE;
  }
  return one.kind == TFR_ALLREDUCE || sums;
}

inline void RunCase(const GpuLibrary& gpu, tfr_world* world, int rank, int size,
                    const Case& one, bool exact) {
  CASE("rank ", rank, " of ", size, ", kind ", one.kind, ", op ", one.op, ", ",
       tfring::DtypeName(one.dtype), " ", one.count, ", prescale ",
       one.prescale, ", postscale ", one.postscale, ", wire ", one.wire);
  const auto count = static_cast<size_t>(one.count);
  const Bytes input =
      RandomValues(one.dtype, count, static_cast<uint32_t>(rank * 7 + 1));
  Call call;
  call.name = "t";
  call.kind = one.kind;
  call.reduce_op = one.op;
  call.prescale = one.prescale;
  call.postscale = one.postscale;
  call.wire_dtype = one.wire;
  Bytes want(input.size() + 1);
  Outputs asked{{tfring::DtypeSize(one.dtype)}, {}, {}};
  const bool scatters = one.kind == TFR_REDUCESCATTER;
  call.tensors = {
      {{one.count}, one.dtype, input.data(), scatters ? nullptr : want.data()}};
  call.allocate = &Outputs::Allocate;
  call.user = &asked;
  tfr_error error = {};
  ASSERT_EQ(call.Run(world, &error), TFR_OK);
  want.resize(input.size());
  if (scatters) want = asked.data[0];

  const GpuBuffer from(gpu, input);
  const GpuBuffer to(gpu, input.size());
  GpuOutputs outputs(gpu, {tfring::DtypeSize(one.dtype)});
  call.tensors[0].input = from.data();
  call.tensors[0].output = scatters ? nullptr : to.data();
  call.allocate = &GpuOutputs::Allocate;
  call.user = &outputs;
  call.device = gpu.DeviceOf(rank);
  const int code = call.Run(world, &error);
  EXPECT_EQ(std::string(error.text), std::string());
  ASSERT_EQ(code, TFR_OK);
  const Bytes got = scatters ? outputs.data[0]->Get() : to.Get();
  if (exact) {
    EXPECT_TRUE(got == want);
  } else {
    ExpectAlike(got, want, input, one.dtype, size);
  }
  EXPECT_TRUE(from.Get() == input);
}

inline std::vector<Case> AllCases(int size) {
  std::vector<Case> cases;
  for (const int32_t dtype : kDtypes) {
    for (const int32_t op :
         {TFR_SUM, TFR_AVERAGE, TFR_MIN, TFR_MAX, TFR_PRODUCT, TFR_ADASUM}) {
      cases.push_back({TFR_ALLREDUCE, op, dtype, 1000});
      cases.push_back({TFR_REDUCESCATTER, op, dtype, 1001});
    }
    cases.push_back({TFR_ALLREDUCE, TFR_SUM, dtype, 100, 0.5, 3.0});
    cases.push_back({TFR_ALLREDUCE, TFR_AVERAGE, dtype, 100, 1.0, 0.25});
    cases.push_back({TFR_ALLREDUCE, TFR_MAX, dtype, 100, 0.5, 1.0});
  }
  for (const int64_t count : {0, 1, 70001}) {
    cases.push_back({TFR_ALLREDUCE, TFR_SUM, TFR_FLOAT32, count});
    cases.push_back({TFR_REDUCESCATTER, TFR_SUM, TFR_INT32, count});
  }
  cases.push_back({TFR_REDUCESCATTER, TFR_AVERAGE, TFR_FLOAT32, 4 * size});
  cases.push_back(
      {TFR_ALLREDUCE, TFR_SUM, TFR_FLOAT32, 100, 1.0, 1.0, TFR_FLOAT16});
  cases.push_back({TFR_ALLREDUCE, TFR_SUM, TFR_FLOAT16, 100, 0x1p-20, 0x1p18});
  std::vector<Case> allowed;
  for (const Case& one : cases) {
    if (Allowed(one, size)) allowed.push_back(one);
  }
  return allowed;
}

// Rows that each rank has, of 3 elements.
inline void Ragged(const GpuLibrary& gpu, tfr_world* world, int rank,
                   int size) {
  GpuOutputs outputs(gpu, {3 * sizeof(int16_t), 1});
  const Bytes rows(static_cast<size_t>(rank) * 3 * sizeof(int16_t),
                   static_cast<char>(rank));
  const Bytes same(5, static_cast<char>(10 + rank));
  const GpuBuffer a(gpu, rows);
  const GpuBuffer b(gpu, same);
  Call call;
  call.kind = TFR_ALLGATHER;
  call.tensors = {{{rank, 3}, TFR_INT16, a.data(), nullptr},
                  {{5}, TFR_BOOL, b.data(), nullptr}};
  call.allocate = &GpuOutputs::Allocate;
  call.user = &outputs;
  call.device = gpu.DeviceOf(rank);
  tfr_error error = {};
  ASSERT_EQ(call.Run(world, &error), TFR_OK);
  Bytes want_a;
  Bytes want_b;
  for (int r = 0; r < size; ++r) {
    want_a.insert(want_a.end(), static_cast<size_t>(r) * 6,
                  static_cast<char>(r));
    want_b.insert(want_b.end(), 5, static_cast<char>(10 + r));
  }
  EXPECT_TRUE(outputs.data[0]->Get() == want_a);
  EXPECT_TRUE(outputs.data[1]->Get() == want_b);
}

// Rank r sends (r + to) % 3 rows to each rank.
inline void Exchange(const GpuLibrary& gpu, tfr_world* world, int rank,
                     int size) {
  std::vector<int64_t> splits;
  Bytes rows;
  for (int to = 0; to < size; ++to) {
    splits.push_back((rank + to) % 3);
    rows.insert(rows.end(), static_cast<size_t>(splits.back()) * 4,
                static_cast<char>(16 * rank + to));
  }
  const GpuBuffer from(gpu, rows);
  GpuOutputs outputs(gpu, {4});
  std::vector<int64_t> counts(static_cast<size_t>(size), -1);
  Call call;
  call.kind = TFR_ALLTOALL;
  call.tensors = {{{static_cast<int64_t>(rows.size() / 4)},
                   TFR_FLOAT32,
                   from.data(),
                   nullptr}};
  call.splits = splits;
  call.counts = counts.data();
  call.allocate = &GpuOutputs::Allocate;
  call.user = &outputs;
  call.device = gpu.DeviceOf(rank);
  tfr_error error = {};
  ASSERT_EQ(call.Run(world, &error), TFR_OK);
  Bytes want;
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(counts[static_cast<size_t>(r)], (r + rank) % 3);
    want.insert(want.end(), static_cast<size_t>((r + rank) % 3) * 4,
                static_cast<char>(16 * r + rank));
  }
  EXPECT_TRUE(outputs.data[0]->Get() == want);
}

inline void Spread(const GpuLibrary& gpu, tfr_world* world, int rank,
                   int size) {
  for (int root = 0; root < size; ++root) {
    for (const bool in_place : {false, true}) {
      CASE("root ", root, ", in place ", in_place);
      const Bytes mine(1000, static_cast<char>(rank + 1));
      const GpuBuffer from(gpu, mine);
      const GpuBuffer to(gpu, mine.size());
      const GpuBuffer& out = in_place ? from : to;
      Call call;
      call.kind = TFR_BROADCAST;
      call.root = root;
      call.tensors = {{{125}, TFR_FLOAT64, from.data(), out.data()}};
      call.device = gpu.DeviceOf(rank);
      tfr_error error = {};
      ASSERT_EQ(call.Run(world, &error), TFR_OK);
      EXPECT_TRUE(out.Get() == Bytes(1000, static_cast<char>(root + 1)));
    }
  }
}

// Each kind and dtype of reduction.
inline void ReductionCases(const GpuLibrary& gpu, tfr_world* world, int rank,
                           int size, bool exact) {
  for (const Case& one : AllCases(size)) {
    RunCase(gpu, world, rank, size, one, exact);
  }
}

// Collectives that only move bytes.
inline void MoverCases(const GpuLibrary& gpu, tfr_world* world, int rank,
                       int size) {
  Ragged(gpu, world, rank, size);
  Exchange(gpu, world, rank, size);
  Spread(gpu, world, rank, size);
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_GPU_CASES_H_
