// Adasum against a model written from arXiv:2006.02924, in float64.
#include <cmath>
#include <string>

#include "custom_ops/core/common/half_scalar.h"
#include "layouts.h"
#include "values.h"

namespace tfring_test {
namespace {

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector ModelOfTwo(const Vector& a, const Vector& b) {
  const double aa = Dot(a, a);
  const double bb = Dot(b, b);
  const double ab = Dot(a, b);
  const double fa = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const double fb = bb == 0 ? 1 : 1 - ab / (2 * bb);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = fa * a[i] + fb * b[i];
  return sum;
}

// The tree over ranks: halves first, so that distance 1 is innermost.
Vector Model(const std::vector<Vector>& ranks) {
  if (ranks.size() == 1) return ranks[0];
  const auto half = static_cast<std::ptrdiff_t>(ranks.size() / 2);
  return ModelOfTwo(Model({ranks.begin(), ranks.begin() + half}),
                    Model({ranks.begin() + half, ranks.end()}));
}

constexpr int32_t kFloating[] = {TFR_FLOAT32, TFR_FLOAT64, TFR_FLOAT16,
                                 TFR_BFLOAT16};

double ToDouble(int32_t dtype, const char* at) {
  if (dtype == TFR_FLOAT64) {
    double value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (dtype == TFR_FLOAT32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  using tfring::half_scalar::ToFloat;
  return static_cast<double>(dtype == TFR_FLOAT16
                                 ? ToFloat(tfring::Float16{bits})
                                 : ToFloat(tfring::BFloat16{bits}));
}

Vector ToDoubles(int32_t dtype, const Bytes& bytes) {
  const size_t size = tfring::DtypeSize(dtype);
  Vector values;
  for (size_t i = 0; i + size <= bytes.size(); i += size) {
    values.push_back(ToDouble(dtype, &bytes[i]));
  }
  return values;
}

// Of the largest element.
double Tolerance(int32_t dtype) {
  switch (dtype) {
    case TFR_FLOAT64:
      return 1e-13;
    case TFR_FLOAT32:
      return 1e-6;
    case TFR_FLOAT16:
      return 0x1p-11 * 1.01;
    default:
      return 0x1p-8 * 1.01;
  }
}

Bytes InputOf(int32_t dtype, size_t count, int rank, size_t tensor) {
  return RandomValues(
      dtype, count,
      static_cast<uint32_t>(1000 * (rank + 1)) + static_cast<uint32_t>(tensor));
}

struct Shape {
  int32_t dtype;
  int64_t count;
};

// What all ranks got, of all tensors.
using Results = std::vector<std::vector<Bytes>>;

Results RunAdasum(const JobOptions& options, const std::vector<Shape>& shapes,
                  bool in_place) {
  Results results(static_cast<size_t>(options.size));
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<Bytes> inputs;
    std::vector<Bytes> outputs;
    for (size_t t = 0; t < shapes.size(); ++t) {
      const auto count = static_cast<size_t>(shapes[t].count);
      inputs.push_back(InputOf(shapes[t].dtype, count, rank, t));
      outputs.push_back(inputs.back());
      outputs.back().reserve(1);
    }
    Call call;
    call.reduce_op = TFR_ADASUM;
    for (size_t t = 0; t < shapes.size(); ++t) {
      call.tensors.push_back({{shapes[t].count},
                              shapes[t].dtype,
                              (in_place ? outputs : inputs)[t].data(),
                              outputs[t].data()});
    }
    ASSERT_EQ(call.Run(world), TFR_OK);
    results[static_cast<size_t>(rank)] = outputs;
  });
  return results;
}

void ExpectModel(const std::vector<Shape>& shapes, const Results& results) {
  for (size_t t = 0; t < shapes.size(); ++t) {
    CASE("tensor ", t, " of dtype ", shapes[t].dtype);
    std::vector<Vector> inputs;
    for (size_t r = 0; r < results.size(); ++r) {
      ASSERT_EQ(results[r].size(), shapes.size());
      EXPECT_TRUE(results[r][t] == results[0][t]);
      inputs.push_back(ToDoubles(
          shapes[t].dtype,
          InputOf(shapes[t].dtype, static_cast<size_t>(shapes[t].count),
                  static_cast<int>(r), t)));
    }
    const Vector want = Model(inputs);
    const Vector got = ToDoubles(shapes[t].dtype, results[0][t]);
    ASSERT_EQ(got.size(), want.size());
    double largest = 0;
    for (const double value : want) {
      largest = std::max(largest, std::abs(value));
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(std::abs(got[i] - want[i]) <=
                  largest * Tolerance(shapes[t].dtype));
    }
  }
}

std::vector<Shape> MixedShapes() {
  std::vector<Shape> shapes;
  for (const int64_t count : {1, 0, 5, 64, 1001}) {
    for (const int32_t dtype : kFloating) shapes.push_back({dtype, count});
  }
  return shapes;
}

TEST(FollowsTheModelInEveryLayout) {
  for (const int size : {1, 2, 4, 8}) {
    Results first;
    for (const uint64_t chunk : {uint64_t{64}, uint64_t{4096}, uint64_t{0}}) {
      CASE("chunk ", chunk);
      ForEachJob({size}, [&](JobOptions options) {
        options.chunk_bytes = chunk;
        const Results results =
            RunAdasum(options, MixedShapes(), chunk == 4096);
        if (first.empty()) {
          ExpectModel(MixedShapes(), results);
          first = results;
        }
        // Neither hosts nor chunks change a bit.
        EXPECT_TRUE(results == first);
      });
    }
  }
}

TEST(LargeTensorsNeedManyChunks) {
  const std::vector<Shape> shapes = {
      {TFR_FLOAT32, 50021}, {TFR_BFLOAT16, 30011}, {TFR_FLOAT64, 10007}};
  ForEachJob({2, 4}, [&](JobOptions options) {
    options.chunk_bytes = 16384;
    ExpectModel(shapes, RunAdasum(options, shapes, true));
  });
}

// One float32 tensor per rank; all must get `want`.
void ExpectSum(const std::vector<std::vector<float>>& inputs,
               const std::vector<float>& want, double prescale = 1.0,
               double postscale = 1.0) {
  JobOptions options;
  options.size = static_cast<int>(inputs.size());
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<float> data = inputs[static_cast<size_t>(rank)];
    Call call;
    call.reduce_op = TFR_ADASUM;
    call.prescale = prescale;
    call.postscale = postscale;
    call.tensors = {{{static_cast<int64_t>(data.size())},
                     TFR_FLOAT32,
                     data.data(),
                     data.data()}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    EXPECT_TRUE(data == want);
  });
}

TEST(OrthogonalVectorsAddUp) {
  ExpectSum({{1, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 3, 0}, {0, 0, 0, 4}},
            {1, 2, 3, 4});
}

TEST(ParallelVectorsAreAveraged) {
  ExpectSum({{1, 2}, {1, 2}, {1, 2}, {1, 2}}, {1, 2});
  ExpectSum({{2, 4}, {4, 8}}, {3, 6});
}

TEST(OppositeVectorsAreTheirAverageToo) {
  ExpectSum({{1, -2}, {-1, 2}}, {0, 0});
}

TEST(VectorsWithoutLengthChangeNothing) {
  ExpectSum({{3, 4}, {0, 0}, {0, 0}, {0, 0}}, {3, 4});
  ExpectSum({{0, 0}, {0, 0}}, {0, 0});
}

TEST(EachTensorHasItsOwnFactors) {
  RunJob({}, [](int rank, tfr_world* world) {
    float parallel[2] = {1, 1};
    float orthogonal[2] = {rank == 0 ? 1.0f : 0.0f, rank == 0 ? 0.0f : 1.0f};
    Call call;
    call.reduce_op = TFR_ADASUM;
    call.tensors = {{{2}, TFR_FLOAT32, parallel, parallel},
                    {{2}, TFR_FLOAT32, orthogonal, orthogonal}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    EXPECT_EQ(parallel[0], 1.0f);
    EXPECT_EQ(orthogonal[0], 1.0f);
    EXPECT_EQ(orthogonal[1], 1.0f);
  });
}

TEST(ScalesBeforeAndAfter) {
  ExpectSum({{1, 0}, {0, 1}}, {6, 6}, 2.0, 3.0);
  ExpectSum({{4, 8}}, {6, 12}, 0.5, 3.0);
}

TEST(LargeHalvesDoNotOverflowOnTheWay) {
  RunJob({}, [](int rank, tfr_world* world) {
    uint16_t value[2] = {0, 0};
    value[rank] = 0x7bff;  // 65504, the largest float16
    Call call;
    call.reduce_op = TFR_ADASUM;
    call.tensors = {{{2}, TFR_FLOAT16, value, value}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    EXPECT_EQ(value[0], 0x7bff);
    EXPECT_EQ(value[1], 0x7bff);
  });
}

TEST(NoTensorsAreLegal) {
  ForEachJob({1, 2, 4}, [](const JobOptions& options) {
    RunJob(options, [](int, tfr_world* world) {
      Call call;
      call.reduce_op = TFR_ADASUM;
      EXPECT_EQ(call.Run(world), TFR_OK);
    });
  });
}

}  // namespace
}  // namespace tfring_test
