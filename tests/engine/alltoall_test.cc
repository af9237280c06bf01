// Alltoall with and without splits, against what each rank can compute alone.
#include <numeric>
#include <string>

#include "layouts.h"
#include "values.h"

namespace tfring_test {
namespace {

// How many rows each rank sends to each: rows(tensor, from, to).
using RowsOf = std::function<int64_t(int, int, int)>;

struct Kind {
  int32_t dtype;
  std::vector<int64_t> row;  // dimensions after the first

  size_t bytes() const {
    size_t bytes = tfring::DtypeSize(dtype);
    for (const int64_t dim : row) bytes *= static_cast<size_t>(dim);
    return bytes;
  }
};

// The rows that one rank has for another, recognisable.
Bytes RowsFor(const Kind& kind, int tensor, int from, int to, int64_t rows) {
  const size_t elements =
      static_cast<size_t>(rows) * kind.bytes() / tfring::DtypeSize(kind.dtype);
  return RandomValues(kind.dtype, elements,
                      static_cast<uint32_t>(tensor * 10000 + from * 100 + to));
}

void Append(const Bytes& more, Bytes* to) {
  to->insert(to->end(), more.begin(), more.end());
}

// `spare` rows at the end of each input are not sent.
void ExpectDelivered(int rank, int size, tfr_world* world,
                     const std::vector<Kind>& kinds, const RowsOf& rows_of,
                     int64_t spare, bool with_splits) {
  std::vector<Bytes> inputs(kinds.size());
  std::vector<Bytes> wanted(kinds.size());
  std::vector<int64_t> wanted_counts;
  Outputs outputs;
  Call call;
  call.kind = TFR_ALLTOALL;
  std::vector<int64_t> splits;
  for (size_t t = 0; t < kinds.size(); ++t) {
    const int tensor = static_cast<int>(t);
    int64_t rows = spare;
    for (int peer = 0; peer < size; ++peer) {
      const int64_t sent = rows_of(tensor, rank, peer);
      const int64_t got = rows_of(tensor, peer, rank);
      Append(RowsFor(kinds[t], tensor, rank, peer, sent), &inputs[t]);
      Append(RowsFor(kinds[t], tensor, peer, rank, got), &wanted[t]);
      splits.push_back(sent);
      wanted_counts.push_back(got);
      rows += sent;
    }
    inputs[t].resize(static_cast<size_t>(rows) * kinds[t].bytes());
    inputs[t].reserve(1);
    std::vector<int64_t> dims = {rows};
    dims.insert(dims.end(), kinds[t].row.begin(), kinds[t].row.end());
    call.tensors.push_back({dims, kinds[t].dtype, inputs[t].data(), nullptr});
    outputs.row_bytes.push_back(kinds[t].bytes());
  }
  std::vector<int64_t> counts(wanted_counts.size(), -1);
  if (with_splits) call.splits = splits;
  call.counts = counts.data();
  call.allocate = &Outputs::Allocate;
  call.user = &outputs;
  ASSERT_EQ(call.Run(world), TFR_OK);
  EXPECT_TRUE(counts == wanted_counts);
  for (size_t t = 0; t < kinds.size(); ++t) {
    CASE("tensor ", t);
    EXPECT_TRUE(outputs.data[t] == wanted[t]);
  }
}

std::vector<Kind> MixedKinds() {
  std::vector<Kind> kinds;
  for (const int32_t dtype : kDtypes) kinds.push_back({dtype, {3}});
  kinds.push_back({TFR_FLOAT32, {}});
  kinds.push_back({TFR_FLOAT32, {0}});
  kinds.push_back({TFR_INT16, {2, 1, 5}});
  return kinds;
}

TEST(EqualPartsWithoutSplits) {
  for (const uint64_t chunk : {uint64_t{64}, uint64_t{8192}, uint64_t{0}}) {
    CASE("chunk ", chunk);
    ForEachJob({1, 2, 3, 4, 7}, [&](JobOptions options) {
      options.chunk_bytes = chunk;
      RunJob(options, [&](int rank, tfr_world* world) {
        for (const int64_t rows : {0, 1, 2, 33}) {
          CASE("rows ", rows);
          ExpectDelivered(
              rank, options.size, world, MixedKinds(),
              [&](int, int, int) { return rows; }, 0, false);
        }
      });
    });
  }
}

TEST(SplitsMayDifferInEveryWay) {
  for (const uint64_t chunk : {uint64_t{64}, uint64_t{0}}) {
    CASE("chunk ", chunk);
    ForEachJob({1, 2, 3, 4, 7}, [&](JobOptions options) {
      options.chunk_bytes = chunk;
      RunJob(options, [&](int rank, tfr_world* world) {
        const RowsOf uneven = [](int tensor, int from, int to) {
          return int64_t{(from * 5 + to * 3 + tensor) % 4};
        };
        const RowsOf to_one = [](int, int from, int to) {
          return int64_t{to == 0 ? from + 1 : 0};
        };
        const RowsOf from_one = [](int, int from, int to) {
          return int64_t{from == 0 ? to : 0};
        };
        const RowsOf none = [](int, int, int) { return int64_t{0}; };
        for (const int64_t spare : {0, 2}) {
          for (const RowsOf& rows : {uneven, to_one, from_one, none}) {
            ExpectDelivered(rank, options.size, world, MixedKinds(), rows,
                            spare, true);
          }
        }
      });
    });
  }
}

TEST(LargeTensorsNeedManyChunks) {
  ForEachJob({2, 3, 4}, [&](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      ExpectDelivered(
          rank, options.size, world,
          {{TFR_FLOAT32, {17}}, {TFR_INT8, {}}, {TFR_INT64, {1}}},
          [](int tensor, int from, int to) {
            return int64_t{5003 * (tensor + 1) + 1001 * from + 7 * to};
          },
          1, true);
    });
  });
}

TEST(NoTensorsAreLegal) {
  ForEachJob({1, 2, 3}, [&](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      ExpectDelivered(
          rank, options.size, world, {}, [](int, int, int) { return 0; }, 0,
          false);
    });
  });
}

TEST(BadSplitsOnOneRankFailAllRanks) {
  ForEachJob({1, 2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const auto size = static_cast<size_t>(options.size);
      const std::vector<float> input(size, 1.0f);
      std::vector<float> output(size * size);
      const int culprit = options.size - 1;
      const std::string blame = "rank " + std::to_string(culprit) + ": ";
      Call good;
      good.kind = TFR_ALLTOALL;
      good.tensors = {{{static_cast<int64_t>(size)},
                       TFR_FLOAT32,
                       input.data(),
                       output.data()}};
      const auto refused = [&](const Call& bad, const char* text) {
        tfr_error error = {};
        EXPECT_EQ((rank == culprit ? bad : good).Run(world, &error),
                  TFR_INVALID_ARGUMENT);
        EXPECT_CONTAINS(std::string(error.text), blame + text);
      };
      Call bad = good;
      bad.splits.assign(size, 0);
      bad.splits[0] = -1;
      refused(bad, "`splits` must not be negative");
      bad.splits[0] = options.size + 1;
      refused(bad, "`splits` must not be negative and must add up to at most");
      bad.splits.assign(size, INT64_MAX);
      refused(bad, "`splits` must not be negative and must add up to at most");
      bad = good;
      bad.tensors[0].dims = {};
      refused(bad, "a scalar cannot be split");
      if (options.size > 1) {
        bad = good;
        bad.tensors[0].dims = {static_cast<int64_t>(size) - 1};
        refused(bad, "without `splits` the first dimension must be a multiple");
      }
      EXPECT_EQ(good.Run(world), TFR_OK);
      EXPECT_EQ(output[0], 1.0f);
    });
  });
}

TEST(OtherDimensionsAndDtypesMustAgree) {
  RunJob({}, [](int rank, tfr_world* world) {
    const std::vector<float> input(12, 1.0f);
    std::vector<float> output(24);
    Call call;
    call.kind = TFR_ALLTOALL;
    call.tensors = {{{4, rank + 2}, TFR_FLOAT32, input.data(), output.data()}};
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
    EXPECT_CONTAINS(std::string(error.text),
                    "rank 1 sent alltoall of float32 (4, 3)");
    call.tensors[0].dims = {4, 2};
    call.tensors[0].dtype = rank == 0 ? TFR_FLOAT32 : TFR_INT32;
    EXPECT_EQ(call.Run(world), TFR_FAILED_PRECONDITION);
    call.tensors[0].dtype = TFR_FLOAT32;
    EXPECT_EQ(call.Run(world), TFR_OK);
  });
}

TEST(NoMemoryOnOneRankIsItsErrorAlone) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const std::vector<float> input(6000, 1.0f);
      Outputs outputs;
      outputs.row_bytes = {4};
      Call call;
      call.kind = TFR_ALLTOALL;
      call.tensors = {{{6000}, TFR_FLOAT32, input.data(), nullptr}};
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

}  // namespace
}  // namespace tfring_test
