// Allreduce of wide floats that travel in 16 bits, against plain arithmetic.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "layouts.h"
#include "values.h"

namespace tfring_test {
namespace {

struct Case {
  int32_t wire;
  int32_t op = TFR_SUM;
  double prescale = 1.0;
  double postscale = 1.0;
};

constexpr int32_t kWires[] = {TFR_FLOAT16, TFR_BFLOAT16};
constexpr int32_t kWide[] = {TFR_FLOAT32, TFR_FLOAT64};
constexpr int32_t kOps[] = {TFR_SUM, TFR_AVERAGE, TFR_MIN, TFR_MAX,
                            TFR_PRODUCT};

// The nearest number of the 16-bit type, to even; in its range.
double RoundTo(int32_t wire, double value) {
  const int bits = wire == TFR_FLOAT16 ? 10 : 7;
  const int smallest = wire == TFR_FLOAT16 ? -14 : -126;
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), smallest) - bits;
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

double At(const Bytes& bytes, int32_t dtype, size_t i) {
  if (dtype == TFR_FLOAT64) {
    double value;
    std::memcpy(&value, bytes.data() + 8 * i, 8);
    return value;
  }
  float value;
  std::memcpy(&value, bytes.data() + 4 * i, 4);
  return static_cast<double>(value);
}

// The input of a rank, rounded as it must travel.
float Sent(const Bytes& bytes, int32_t dtype, size_t i, const Case& with) {
  double value = At(bytes, dtype, i) * with.prescale;
  if (dtype == TFR_FLOAT32) {
    value = static_cast<float>(At(bytes, dtype, i)) *
            static_cast<float>(with.prescale);
  }
  return static_cast<float>(RoundTo(with.wire, value));
}

float Combine(int32_t op, float a, float b) {
  if (op == TFR_MIN) return std::min(a, b);
  if (op == TFR_MAX) return std::max(a, b);
  return op == TFR_PRODUCT ? a * b : a + b;
}

// What all must get on one host: one rounding, then float32 in rank order.
float Expected(const std::vector<Bytes>& inputs, int32_t dtype, size_t i,
               const Case& with) {
  float value = Sent(inputs[0], dtype, i, with);
  for (size_t r = 1; r < inputs.size(); ++r) {
    value = Combine(with.op, value, Sent(inputs[r], dtype, i, with));
  }
  if (with.op == TFR_AVERAGE) value /= static_cast<float>(inputs.size());
  return with.postscale == 1.0 ? value
                               : value * static_cast<float>(with.postscale);
}

std::vector<Bytes> InputsOf(int ranks, int32_t dtype, size_t count) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < ranks; ++r) {
    inputs.push_back(
        RandomValues(dtype, count, static_cast<uint32_t>(100 * r + dtype)));
    if (dtype != TFR_FLOAT64) continue;
    for (size_t i = 0; i < count; ++i) {  // else beyond float16
      const double value = At(inputs.back(), dtype, i) * 0x1p-28;
      std::memcpy(inputs.back().data() + 8 * i, &value, 8);
    }
  }
  return inputs;
}

Call CallOf(const Case& with) {
  Call call;
  call.reduce_op = with.op;
  call.prescale = with.prescale;
  call.postscale = with.postscale;
  call.wire_dtype = with.wire;
  return call;
}

// One element of what came, and the error that the layout may add.
void Check(const std::vector<Bytes>& inputs, int32_t dtype, const Bytes& got,
           const Case& with, bool exact, size_t count) {
  // Partial results between hosts are rounded: on the host, when added up.
  const double step = with.wire == TFR_FLOAT16 ? 0x1p-11 : 0x1p-8;
  for (size_t i = 0; i < count; ++i) {
    const double want = static_cast<double>(Expected(inputs, dtype, i, with));
    const double value = At(got, dtype, i);
    if (exact) {
      ASSERT_EQ(value, want);
      continue;
    }
    double sum = 0;  // of magnitudes
    for (const Bytes& input : inputs) {
      sum += std::abs(static_cast<double>(Sent(input, dtype, i, with)));
    }
    const double scale = with.op == TFR_PRODUCT ? std::abs(want) : sum;
    ASSERT_TRUE(std::abs(value - want) <= 3 * step * scale + 0x1p-20);
  }
}

void ReduceAndCheck(int rank, const JobOptions& options, tfr_world* world,
                    const Case& with, size_t count, bool in_place) {
  const bool one_host = options.shared_memory && options.hosts.back() == "a" &&
                        options.hosts[options.hosts.size() / 2] == "a";
  const bool rounds_between =
      !one_host && options.size > 1 && with.op != TFR_MIN && with.op != TFR_MAX;
  Call call = CallOf(with);
  std::vector<std::vector<Bytes>> inputs;
  std::vector<Bytes> outputs;
  for (const int32_t dtype : kWide) {
    inputs.push_back(InputsOf(options.size, dtype, count));
    outputs.push_back(in_place ? inputs.back()[static_cast<size_t>(rank)]
                               : Bytes(count * 8 + 1));
  }
  for (size_t t = 0; t < inputs.size(); ++t) {
    const Bytes& input =
        in_place ? outputs[t] : inputs[t][static_cast<size_t>(rank)];
    call.tensors.push_back({{static_cast<int64_t>(count)},
                            kWide[t],
                            input.data(),
                            outputs[t].data()});
  }
  ASSERT_EQ(call.Run(world), TFR_OK);
  for (size_t t = 0; t < inputs.size(); ++t) {
    CASE("tensor ", t);
    Check(inputs[t], kWide[t], outputs[t], with, !rounds_between, count);
  }
}

TEST(RoundsOnceAndReducesInFloat32) {
  for (const uint64_t chunk : {uint64_t{64}, uint64_t{0}}) {
    CASE("chunk ", chunk);
    ForEachJob({1, 2, 3, 4}, [&](JobOptions options) {
      options.chunk_bytes = chunk;
      RunJob(options, [&](int rank, tfr_world* world) {
        for (const int32_t wire : kWires) {
          for (const int32_t op : kOps) {
            CASE("wire ", wire, " op ", op);
            ReduceAndCheck(rank, options, world, {wire, op}, 1037, false);
            ReduceAndCheck(rank, options, world, {wire, op}, 7, true);
          }
        }
      });
    });
  }
}

TEST(ManyChunks) {
  ForEachJob({2, 3}, [&](JobOptions options) {
    options.chunk_bytes = 16384;
    RunJob(options, [&](int rank, tfr_world* world) {
      ReduceAndCheck(rank, options, world, {TFR_BFLOAT16, TFR_SUM}, 100003,
                     false);
      ReduceAndCheck(rank, options, world, {TFR_FLOAT16, TFR_AVERAGE}, 100003,
                     true);
    });
  });
}

TEST(ScalesBeforeTheRoundingAndAfterTheSum) {
  ForEachJob({1, 2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      ReduceAndCheck(rank, options, world, {TFR_FLOAT16, TFR_AVERAGE, 0.3, 1.7},
                     300, false);
      ReduceAndCheck(rank, options, world, {TFR_BFLOAT16, TFR_SUM, 0.7, 0.1},
                     300, false);
    });
  });
}

// 65504 is the largest float16: two hosts' sums would be infinite.
TEST(AveragesDoNotOverflowBetweenHosts) {
  ForEachJob({1, 2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int, tfr_world* world) {
      std::vector<float> data(100, 60000.0f);
      Call call = CallOf({TFR_FLOAT16, TFR_AVERAGE});
      call.tensors = {{{100}, TFR_FLOAT32, data.data(), data.data()}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      for (const float value : data) {
        ASSERT_TRUE(value == 60000.0f);
      }
    });
  });
}

// The factor after the sum may take it where float16 has nothing left.
TEST(ScalesAfterwardsInFloat32) {
  ForEachJob({1, 2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int, tfr_world* world) {
      double value = 3.0;
      Call call = CallOf({TFR_FLOAT16, TFR_SUM, 1.0, 0x1p-40});
      call.tensors = {{{}, TFR_FLOAT64, &value, &value}};
      ASSERT_EQ(call.Run(world), TFR_OK);
      EXPECT_EQ(value, 3.0 * 0x1p-40 * options.size);
    });
  });
}

// 1 + 2^-11 is a tie, to even: 1. A little more must become 1 + 2^-10, though
// float32 cannot tell it from the tie.
TEST(RoundsFloat64Once) {
  JobOptions options;
  options.size = 1;
  RunJob(options, [](int, tfr_world* world) {
    double data[] = {1 + 0x1p-11,
                     1 + 0x1p-11 + 0x1p-40,
                     1 + 0x1.8p-10,
                     1 + 0x1.8p-10 - 0x1p-40,
                     -(1 + 0x1p-11 + 1e-9),
                     0x1p-25 + 0x1p-60,
                     1e300,
                     -1e-300};
    const double want[] = {
        1,       1 + 0x1p-10, 1 + 0x1p-9, 1 + 0x1p-10, -(1 + 0x1p-10),
        0x1p-24, INFINITY,    -0.0};
    Call call = CallOf({TFR_FLOAT16});
    call.tensors = {{{8}, TFR_FLOAT64, data, data}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(data[i], want[i]);
  });
}

TEST(OtherTensorsTravelAsTheyAre) {
  ForEachJob({1, 2, 3}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      std::vector<Bytes> plain;
      for (const bool narrow : {false, true}) {
        std::vector<Bytes> data;
        Call call = CallOf({narrow ? TFR_BFLOAT16 : 0});
        for (const int32_t dtype : kDtypes) {
          if (dtype == TFR_BOOL || dtype == TFR_BFLOAT16) continue;
          if (dtype == TFR_FLOAT32 || dtype == TFR_FLOAT64) continue;
          data.push_back(
              RandomValues(dtype, 501, static_cast<uint32_t>(9 * rank)));
          call.tensors.push_back(
              {{501}, dtype, data.back().data(), data.back().data()});
        }
        for (size_t t = 0; t < data.size(); ++t) {
          call.tensors[t].input = call.tensors[t].output = data[t].data();
        }
        float wide = 1.0f;  // so that there is something to round
        call.tensors.push_back({{}, TFR_FLOAT32, &wide, &wide});
        ASSERT_EQ(call.Run(world), TFR_OK);
        if (plain.empty()) plain = data;
        EXPECT_TRUE(plain == data);
      }
    });
  });
}

TEST(ActiveRanksGetTheBitsOfAJobOfTheirOwn) {
  ForEachJob({2, 3, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      const Case with{TFR_FLOAT16, TFR_AVERAGE, 0.3, 1.7};
      if (rank > 0) {
        std::vector<Bytes> inputs = InputsOf(options.size, TFR_FLOAT32, 5000);
        inputs.erase(inputs.begin());
        Bytes got(5000 * 4);
        Call call = CallOf(with);
        call.tensors = {{{5000},
                         TFR_FLOAT32,
                         inputs[static_cast<size_t>(rank - 1)].data(),
                         got.data()}};
        ASSERT_EQ(call.Run(world), TFR_OK);
        const bool exact = options.shared_memory && options.hosts[1] == "a" &&
                           options.hosts.back() == "a";
        Check(inputs, TFR_FLOAT32, got, with, exact, 5000);
      }
      int64_t last = -1;
      Call join;
      join.name = "join";
      join.kind = TFR_JOIN;
      join.counts = &last;
      ASSERT_EQ(join.Run(world), TFR_OK);
    });
  });
}

// What one rank writes to its sockets for a sum of `count` float32.
uint64_t BytesSent(int hosts, int32_t wire, int64_t count) {
  JobOptions options;
  options.size = hosts;
  for (int h = 0; h < hosts; ++h) options.hosts.push_back(std::to_string(h));
  uint64_t sent = 0;
  RunJob(options, [&](int rank, tfr_world* world) {
    std::vector<float> data(static_cast<size_t>(count), 1.0f);
    tfr_stats before = {};
    tfr_stats after = {};
    tfr_world_stats(world, &before);
    Call call = CallOf({wire});
    call.tensors = {{{count}, TFR_FLOAT32, data.data(), data.data()}};
    ASSERT_EQ(call.Run(world), TFR_OK);
    tfr_world_stats(world, &after);
    if (rank == 0) sent = after.wire_bytes_sent - before.wire_bytes_sent;
  });
  return sent;
}

// Headers included, twice the elements cost the same.
TEST(HalfTheBytesGoBetweenHosts) {
  constexpr int64_t kCount = 150000;
  for (const int hosts : {2, 3}) {
    for (const int32_t wire : kWires) {
      CASE(hosts, " hosts, wire ", wire);
      EXPECT_EQ(BytesSent(hosts, wire, 2 * kCount),
                BytesSent(hosts, 0, kCount));
    }
  }
}

struct Wrong {
  Call call;
  const char* text;
};

std::vector<Wrong> WrongCalls() {
  std::vector<Wrong> wrong;
  const auto add = [&](int32_t kind, int32_t op, int32_t wire,
                       const char* text) {
    Call call = CallOf({wire, op});
    call.kind = kind;
    wrong.push_back({call, text});
  };
  add(TFR_ALLREDUCE, TFR_SUM, TFR_FLOAT32,
      "`wire_dtype` must be float16, bfloat16 or 0 for the tensors' own. "
      "Received: float32");
  add(TFR_ALLREDUCE, TFR_SUM, 77, "Received: dtype number 77");
  add(TFR_ALLREDUCE, TFR_ADASUM, TFR_FLOAT16,
      "Received: wire_dtype=float16 for allreduce with Adasum");
  add(TFR_BROADCAST, TFR_SUM, TFR_BFLOAT16,
      "Received: wire_dtype=bfloat16 for broadcast");
  add(TFR_REDUCESCATTER, TFR_SUM, TFR_FLOAT16,
      "Received: wire_dtype=float16 for reducescatter");
  return wrong;
}

TEST(WrongOnesAreFaultsOnEveryRank) {
  JobOptions options;
  RunJob(options, [](int rank, tfr_world* world) {
    for (Wrong& wrong : WrongCalls()) {
      float value[2] = {1.0f, 1.0f};
      wrong.call.tensors = {{{2}, TFR_FLOAT32, value, value}};
      if (rank == 1) wrong.call.wire_dtype = 0;
      tfr_error error = {};
      EXPECT_EQ(wrong.call.Run(world, &error), TFR_INVALID_ARGUMENT);
      const std::string text = error.text;
      if (text.find(wrong.text) == std::string::npos) {
        EXPECT_EQ(text, std::string(wrong.text));
      }
    }
  });
}

TEST(RanksMustAgree) {
  JobOptions options;
  RunJob(options, [](int rank, tfr_world* world) {
    float value = 1.0f;
    Call call = CallOf({rank == 0 ? TFR_FLOAT16 : 0});
    call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_FAILED_PRECONDITION);
    EXPECT_TRUE(std::string(error.text).find("wire=float16") !=
                std::string::npos);
    call = CallOf({TFR_FLOAT16});
    call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
    EXPECT_EQ(call.Run(world, &error), TFR_OK);  // nothing is lost
  });
}

}  // namespace
}  // namespace tfring_test
