// The reduction kernels and 16-bit conversions, against plain arithmetic.
#include "custom_ops/core/collectives/reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "custom_ops/core/common/half_scalar.h"
#include "custom_ops/core/tfring.h"

namespace tfring {
namespace {

using half_scalar::ToBFloat16;
using half_scalar::ToFloat;
using half_scalar::ToFloat16;

ReduceSpec Spec(int32_t dtype, int32_t op) { return {dtype, op, 1.0, 1.0, 1}; }

TEST(Float16RoundTripsEveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half = {static_cast<uint16_t>(bits)};
    const float wide = ToFloat(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(wide))));
    } else {
      ASSERT_EQ(ToFloat16(wide).bits, half.bits);
    }
  }
}

TEST(Float16RoundsToNearestEven) {
  EXPECT_EQ(ToFloat16(1.0f).bits, 0x3c00);
  EXPECT_EQ(ToFloat16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(1.0f + 0x1p-11f).bits, 0x3c00);    // tie, to even
  EXPECT_EQ(ToFloat16(1.0f + 0x1.8p-10f).bits, 0x3c02);  // tie, to even
  EXPECT_EQ(ToFloat16(0x1p-24f).bits, 0x0001);           // smallest
  EXPECT_EQ(ToFloat16(0x1p-25f).bits, 0x0000);           // tie, to even
  EXPECT_EQ(ToFloat16(-0x1.8p-24f).bits, 0x8002);        // tie, to even
  EXPECT_EQ(ToFloat16(-INFINITY).bits, 0xfc00);
}

TEST(BFloat16RoundsToNearestEven) {
  EXPECT_EQ(ToBFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f).bits, 0x3f80);    // tie, to even
  EXPECT_EQ(ToBFloat16(1.0f + 0x1.8p-7f).bits, 0x3f82);  // tie, to even
  EXPECT_EQ(ToBFloat16(INFINITY).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(NAN))));
}

// All source counts and odd lengths give the sum in order.
TEST(SumsFloatsInRankOrder) {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const size_t count :
         {size_t{1}, size_t{7}, size_t{513}, size_t{5000}}) {
      CASE(ranks, " sources of ", count);
      std::vector<std::vector<float>> data;
      std::vector<const void*> sources;
      for (int r = 0; r < ranks; ++r) {
        data.emplace_back(count);
        for (size_t i = 0; i < count; ++i) {
          data.back()[i] = static_cast<float>(std::sin(r + 0.7 * i)) * 1e4f;
        }
      }
      for (const auto& d : data) sources.push_back(d.data());
      std::vector<float> out(count);
      Reduce(Spec(TFR_FLOAT32, TFR_SUM), sources.data(), ranks, out.data(),
             count);
      for (size_t i = 0; i < count; ++i) {
        float want = data[0][i];
        for (size_t r = 1; r < data.size(); ++r) want += data[r][i];
        ASSERT_EQ(out[i], want);
      }
    }
  }
}

TEST(OutputMayBeASource) {
  std::vector<float> a(1000, 1.0f);
  const std::vector<float> b(1000, 2.0f);
  const void* sources[] = {a.data(), b.data()};
  Reduce(Spec(TFR_FLOAT32, TFR_SUM), sources, 2, a.data(), a.size());
  for (const float value : a) ASSERT_EQ(value, 3.0f);
}

template <typename T>
T ReduceTwo(const ReduceSpec& spec, T a, T b) {
  const void* sources[] = {&a, &b};
  T out;
  Reduce(spec, sources, 2, &out, 1);
  return out;
}

TEST(EveryOperationOnIntegers) {
  EXPECT_EQ(ReduceTwo<int32_t>(Spec(TFR_INT32, TFR_SUM), 5, -7), -2);
  EXPECT_EQ(ReduceTwo<int32_t>(Spec(TFR_INT32, TFR_MIN), 5, -7), -7);
  EXPECT_EQ(ReduceTwo<int32_t>(Spec(TFR_INT32, TFR_MAX), 5, -7), 5);
  EXPECT_EQ(ReduceTwo<int32_t>(Spec(TFR_INT32, TFR_PRODUCT), 5, -7), -35);
  EXPECT_EQ(ReduceTwo<uint8_t>(Spec(TFR_UINT8, TFR_SUM), 200, 100), 44);
  EXPECT_EQ(ReduceTwo<uint16_t>(Spec(TFR_UINT16, TFR_MAX), 65535, 1), 65535);
  EXPECT_EQ(ReduceTwo<int64_t>(Spec(TFR_INT64, TFR_SUM),
                               std::numeric_limits<int64_t>::max(), 1),
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ReduceTwo<uint8_t>(Spec(TFR_BOOL, TFR_MIN), 1, 0), 0);
  EXPECT_EQ(ReduceTwo<uint8_t>(Spec(TFR_BOOL, TFR_MAX), 1, 0), 1);
}

TEST(IntegerAverageTruncatesTowardsZero) {
  ReduceSpec spec = Spec(TFR_INT32, TFR_SUM);
  spec.divisor = 2;
  EXPECT_EQ(ReduceTwo<int32_t>(spec, 1, 2), 1);
  EXPECT_EQ(ReduceTwo<int32_t>(spec, -1, -2), -1);
  spec.dtype = TFR_INT8;
  EXPECT_EQ(ReduceTwo<int8_t>(spec, 100, 120), 110);
  spec.dtype = TFR_INT64;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ReduceTwo<int64_t>(spec, kMost, kMost - 2), kMost - 1);
}

TEST(ScalesInFullPrecision) {
  ReduceSpec spec = Spec(TFR_FLOAT64, TFR_SUM);
  spec.prescale = 1.0 / 3.0;
  spec.postscale = 1e-300;
  EXPECT_EQ(ReduceTwo<double>(spec, 3.0, 6.0),
            (3.0 * (1.0 / 3.0) + 6.0 * (1.0 / 3.0)) * 1e-300);
  spec = Spec(TFR_INT32, TFR_SUM);
  spec.postscale = 0.5;
  EXPECT_EQ(ReduceTwo<int32_t>(spec, 1, 2), 1);
}

TEST(MinAndMaxKeepNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int32_t op : {TFR_MIN, TFR_MAX}) {
    EXPECT_TRUE(std::isnan(ReduceTwo<float>(Spec(TFR_FLOAT32, op), nan, 1.0f)));
    EXPECT_TRUE(std::isnan(ReduceTwo<float>(Spec(TFR_FLOAT32, op), 1.0f, nan)));
  }
}

TEST(HalvesAverageWithoutOverflow) {
  ReduceSpec spec = Spec(TFR_FLOAT16, TFR_SUM);
  spec.divisor = 4;
  const std::vector<uint16_t> value(100, ToFloat16(30000.0f).bits);
  const void* sources[] = {value.data(), value.data(), value.data(),
                           value.data()};
  std::vector<uint16_t> out(100);
  Reduce(spec, sources, 4, out.data(), out.size());
  for (const uint16_t bits : out) ASSERT_EQ(bits, value[0]);
}

TEST(TwoHalvesOfAReductionEqualTheWhole) {
  ReduceSpec spec = Spec(TFR_BFLOAT16, TFR_SUM);
  spec.divisor = 4;
  std::vector<std::vector<uint16_t>> data;
  for (int r = 0; r < 4; ++r) {
    data.emplace_back(700);
    for (size_t i = 0; i < 700; ++i) {
      data.back()[i] = ToBFloat16(static_cast<float>(r + 1) / 3 + i).bits;
    }
  }
  const void* first[] = {data[0].data(), data[1].data()};
  const void* second[] = {data[2].data(), data[3].data()};
  std::vector<float> partial[2] = {std::vector<float>(700),
                                   std::vector<float>(700)};
  ReducePartial(spec, first, 2, partial[0].data(), 700);
  ReducePartial(spec, second, 2, partial[1].data(), 700);
  const void* partials[] = {partial[0].data(), partial[1].data()};
  std::vector<uint16_t> out(700);
  ReduceFinal(spec, partials, 2, out.data(), 700);
  for (size_t i = 0; i < 700; ++i) {
    const auto at = [&](size_t r) { return ToFloat(BFloat16{data[r][i]}); };
    const float sum = (at(0) + at(1)) + (at(2) + at(3));
    ASSERT_EQ(out[i], ToBFloat16(sum / 4).bits);
  }
}

}  // namespace
}  // namespace tfring
