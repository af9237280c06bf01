// Reducescatter against an allreduce of the same inputs, bit by bit.
#include <algorithm>
#include <string>

#include "layouts.h"
#include "values.h"

namespace tfring_test {
namespace {

struct Shape {
  int32_t dtype;
  std::vector<int64_t> dims;

  size_t row_elements() const {
    size_t count = 1;
    for (size_t d = 1; d < dims.size(); ++d) {
      count *= static_cast<size_t>(dims[d]);
    }
    return count;
  }
  size_t row_bytes() const { return row_elements() * tfring::DtypeSize(dtype); }
  size_t rows() const { return static_cast<size_t>(dims[0]); }
};

struct Factors {
  int32_t op = TFR_SUM;
  double prescale = 1.0;
  double postscale = 1.0;
};

size_t FirstRow(size_t rows, int rank, int size) {
  size_t first = 0;
  for (int r = 0; r < rank; ++r) {
    const auto extra =
        static_cast<size_t>(r) < rows % static_cast<size_t>(size);
    first += rows / static_cast<size_t>(size) + (extra ? 1 : 0);
  }
  return first;
}

// Runs both collectives on the same inputs and compares every byte.
void ExpectRowsOfAllreduce(int rank, int size, tfr_world* world,
                           const std::vector<Shape>& shapes,
                           const Factors& factors) {
  std::vector<Bytes> inputs;
  std::vector<Bytes> reduced;
  Outputs outputs;
  Call all;
  for (size_t t = 0; t < shapes.size(); ++t) {
    const Shape& shape = shapes[t];
    const size_t count = shape.rows() * shape.row_elements();
    inputs.push_back(RandomValues(
        shape.dtype, count,
        static_cast<uint32_t>(17 * rank) + static_cast<uint32_t>(t)));
    reduced.emplace_back(count * tfring::DtypeSize(shape.dtype) + 1);
    outputs.row_bytes.push_back(shape.row_bytes());
  }
  for (size_t t = 0; t < shapes.size(); ++t) {
    all.tensors.push_back(
        {shapes[t].dims, shapes[t].dtype, inputs[t].data(), reduced[t].data()});
  }
  all.reduce_op = factors.op;
  all.prescale = factors.prescale;
  all.postscale = factors.postscale;
  ASSERT_EQ(all.Run(world), TFR_OK);
  Call scatter = all;
  scatter.kind = TFR_REDUCESCATTER;
  scatter.allocate = &Outputs::Allocate;
  scatter.user = &outputs;
  for (Tensor& tensor : scatter.tensors) tensor.output = nullptr;
  ASSERT_EQ(scatter.Run(world), TFR_OK);
  for (size_t t = 0; t < shapes.size(); ++t) {
    CASE("tensor ", t);
    const size_t first = FirstRow(shapes[t].rows(), rank, size);
    const size_t last = FirstRow(shapes[t].rows(), rank + 1, size);
    ASSERT_EQ(static_cast<size_t>(outputs.rows[t]), last - first);
    const Bytes want(reduced[t].begin() + static_cast<std::ptrdiff_t>(
                                              first * shapes[t].row_bytes()),
                     reduced[t].begin() + static_cast<std::ptrdiff_t>(
                                              last * shapes[t].row_bytes()));
    EXPECT_TRUE(want == outputs.data[t]);
  }
}

std::vector<Shape> MixedShapes(int64_t rows) {
  std::vector<Shape> shapes;
  for (const int32_t dtype : kDtypes) {
    if (dtype == TFR_BOOL) continue;
    shapes.push_back({dtype, {rows, 3}});
  }
  shapes.push_back({TFR_FLOAT32, {rows, 0}});
  shapes.push_back({TFR_INT8, {0, 5}});
  shapes.push_back({TFR_FLOAT64, {rows + 1}});
  return shapes;
}

TEST(RowsHaveTheBitsOfAllreduce) {
  for (const uint64_t chunk : {uint64_t{64}, uint64_t{8192}, uint64_t{0}}) {
    CASE("chunk ", chunk);
    ForEachJob({1, 2, 3, 4, 7}, [&](JobOptions options) {
      options.chunk_bytes = chunk;
      RunJob(options, [&](int rank, tfr_world* world) {
        for (const int64_t rows : {0, 1, 5, 14, 101}) {
          CASE("rows ", rows);
          ExpectRowsOfAllreduce(rank, options.size, world, MixedShapes(rows),
                                {});
        }
      });
    });
  }
}

TEST(AveragesAndFactorsAreThoseOfAllreduce) {
  ForEachJob({1, 2, 3, 4}, [&](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      for (const Factors& factors :
           {Factors{TFR_AVERAGE, 1.0, 1.0}, Factors{TFR_AVERAGE, 0.3, 1.0},
            Factors{TFR_SUM, 1.0, 0.7}, Factors{TFR_SUM, 0.9, 3.0}}) {
        CASE("op ", factors.op, " ", factors.prescale, " ", factors.postscale);
        ExpectRowsOfAllreduce(rank, options.size, world, MixedShapes(29),
                              factors);
      }
    });
  });
}

TEST(LargeTensorsNeedManyChunks) {
  ForEachJob({2, 3, 4}, [&](JobOptions options) {
    options.chunk_bytes = 16384;
    RunJob(options, [&](int rank, tfr_world* world) {
      ExpectRowsOfAllreduce(rank, options.size, world,
                            {{TFR_FLOAT32, {5003, 17}},
                             {TFR_BFLOAT16, {3, 10000}},
                             {TFR_INT8, {100003}},
                             {TFR_FLOAT64, {7, 1}}},
                            {TFR_AVERAGE, 1.0, 1.0});
    });
  });
}

TEST(OutputsMayBeGiven) {
  JobOptions options;
  options.size = 3;
  RunJob(options, [](int rank, tfr_world* world) {
    const float input[4] = {1, 2, 3, 4};
    float output[2] = {-1, -1};
    Call call;
    call.kind = TFR_REDUCESCATTER;
    call.tensors = {{{4}, TFR_FLOAT32, input, output}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    EXPECT_EQ(output[0], rank == 0 ? 3.0f : rank == 1 ? 9.0f : 12.0f);
    EXPECT_EQ(output[1], rank == 0 ? 6.0f : -1.0f);
  });
}

TEST(NoMemoryOnOneRankIsItsErrorAlone) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const std::vector<float> input(1000, 1.0f);
      Outputs outputs;
      outputs.row_bytes = {4};
      Call call;
      call.kind = TFR_REDUCESCATTER;
      call.tensors = {{{1000}, TFR_FLOAT32, input.data(), nullptr}};
      call.user = &outputs;
      call.allocate = &Outputs::Allocate;
      if (rank == 1) {
        call.allocate = [](void*, int32_t, int64_t) -> void* {
          return nullptr;
        };
      }
      const int want = rank == 1 ? TFR_RESOURCE_EXHAUSTED : TFR_OK;
      EXPECT_EQ(call.Run(world), want);
      call.allocate = &Outputs::Allocate;
      EXPECT_EQ(call.Run(world), TFR_OK);
    });
  });
}

TEST(WrongOperationsAndShapesAreFaults) {
  ForEachJob({1, 2}, [](const JobOptions& options) {
    RunJob(options, [&](int, tfr_world* world) {
      const float input[2] = {1, 2};
      float output[2];
      const auto refused = [&](const Call& call, const char* text) {
        tfr_error error = {};
        EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
        EXPECT_CONTAINS(std::string(error.text), text);
      };
      Call call;
      call.kind = TFR_REDUCESCATTER;
      call.tensors = {{{2}, TFR_FLOAT32, input, output}};
      for (const int32_t op : {TFR_ADASUM, TFR_MIN, TFR_MAX, TFR_PRODUCT}) {
        Call bad = call;
        bad.reduce_op = op;
        refused(bad, "`op` must be Average or Sum");
      }
      Call bad = call;
      bad.tensors[0].dims = {};
      refused(bad, "a scalar cannot be split");
      bad = call;
      bad.tensors[0].dtype = TFR_BOOL;
      refused(bad, "is bool");
      EXPECT_EQ(call.Run(world), TFR_OK);
    });
  });
}

TEST(RowsMustAgree) {
  RunJob({}, [](int rank, tfr_world* world) {
    const float input[3] = {1, 2, 3};
    float output[3];
    Call call;
    call.kind = TFR_REDUCESCATTER;
    call.tensors = {{{rank + 2}, TFR_FLOAT32, input, output}};
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
    EXPECT_CONTAINS(std::string(error.text),
                    "rank 0 sent reducescatter of float32 (2,), op=Sum");
  });
}

}  // namespace
}  // namespace tfring_test
