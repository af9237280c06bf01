// The reduction kernels and 16-bit conversions, against plain arithmetic.
#include "custom_ops/core/collectives/reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "custom_ops/core/collectives/reduce_table.h"
#include "custom_ops/core/common/half_scalar.h"
#include "custom_ops/core/tfring.h"
#include "values.h"

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

// --- all kernels give the same bits ------------------------------------------

using tfring_test::Bytes;
using tfring_test::RandomValues;

// The kernels of this processor that are not the portable ones.
std::vector<const ReduceTable*> OtherTables() {
  std::vector<const ReduceTable*> tables;
#if defined(TFRING_HAVE_AVX2_KERNELS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    tables.push_back(&Avx2ReduceTable());
  }
#endif
  return tables;
}

// Lengths around those of a vector, a tile and a block.
constexpr size_t kCounts[] = {1, 7, 31, 32, 33, 64, 130, 512, 1029};
constexpr size_t kMostElements = 1029;
constexpr size_t kAccumulatorBytes = 16;

using Kernel = ReduceTable::Kernel;

void ExpectSameBits(const ReduceTable& table, Kernel ReduceTable::* kernel,
                    const ReduceSpec& spec, const std::vector<Bytes>& data,
                    int sources, size_t count) {
  std::vector<const void*> list;
  for (int s = 0; s < sources; ++s) {
    list.push_back(data[static_cast<size_t>(s)].data());
  }
  Bytes want(count * kAccumulatorBytes + 1);
  Bytes got(count * kAccumulatorBytes + 1);
  (GenericReduceTable().*kernel)(spec, list.data(), sources, want.data(),
                                 count);
  (table.*kernel)(spec, list.data(), sources, got.data(), count);
  ASSERT_TRUE(want == got);
}

std::vector<Bytes> SourcesOf(int32_t dtype, int count) {
  std::vector<Bytes> data;
  for (int s = 0; s < count; ++s) {
    data.push_back(
        RandomValues(dtype, kMostElements, static_cast<uint32_t>(31 * s)));
  }
  return data;
}

std::vector<ReduceSpec> SpecsOf(int32_t dtype) {
  std::vector<ReduceSpec> specs;
  for (const int32_t op : {TFR_SUM, TFR_MIN, TFR_MAX, TFR_PRODUCT}) {
    specs.push_back(Spec(dtype, op));
    specs.push_back({dtype, op, 0.3, 1.7, 3});
  }
  return specs;
}

TEST(KernelsGiveTheSameBits) {
  for (const ReduceTable* table : OtherTables()) {
    for (const int32_t dtype : tfring_test::kDtypes) {
      const std::vector<Bytes> data = SourcesOf(dtype, 8);
      for (const ReduceSpec& spec : SpecsOf(dtype)) {
        for (const int sources : {1, 2, 3, 4, 8}) {
          for (const size_t count : kCounts) {
            CASE(table->name, ", dtype ", dtype, ", op ", spec.op, ", ",
                 sources, " sources of ", count);
            ExpectSameBits(*table, &ReduceTable::reduce, spec, data, sources,
                           count);
            ExpectSameBits(*table, &ReduceTable::partial, spec, data, sources,
                           count);
          }
        }
      }
    }
  }
}

TEST(KernelsOfFloatAccumulatorsGiveTheSameBits) {
  for (const ReduceTable* table : OtherTables()) {
    for (const int32_t dtype :
         {TFR_FLOAT32, TFR_FLOAT64, TFR_FLOAT16, TFR_BFLOAT16}) {
      const bool is_double = dtype == TFR_FLOAT64;
      const std::vector<Bytes> data =
          SourcesOf(is_double ? TFR_FLOAT64 : TFR_FLOAT32, 4);
      for (const ReduceSpec& spec : SpecsOf(dtype)) {
        for (const size_t count : kCounts) {
          CASE(table->name, ", dtype ", dtype, ", op ", spec.op, ", ", count);
          ExpectSameBits(*table, &ReduceTable::final, spec, data, 4, count);
          ExpectSameBits(*table, &ReduceTable::merge, spec, data, 3, count);
        }
      }
    }
  }
}

TEST(KernelsFromHalvesToWideFloatsGiveTheSameBits) {
  for (const ReduceTable* table : OtherTables()) {
    for (const int32_t half : {TFR_FLOAT16, TFR_BFLOAT16}) {
      const std::vector<Bytes> data = SourcesOf(half, 4);
      for (const int32_t dtype : {TFR_FLOAT32, TFR_FLOAT64}) {
        for (ReduceSpec spec : SpecsOf(dtype)) {
          spec.source_dtype = half;
          for (const size_t count : kCounts) {
            CASE(table->name, ", ", half, " to ", dtype, ", ", count);
            ExpectSameBits(*table, &ReduceTable::reduce, spec, data, 4, count);
          }
        }
      }
    }
  }
}

// Every 16-bit number, its neighbours in float32, and what lies between.
std::vector<float> HardToRound() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low :
         {0x0u, 0x1u, 0x1fffu, 0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu}) {
      values.push_back(half_scalar::BitsToFloat(high << 16 | low));
    }
  }
  return values;
}

TEST(KernelsRoundAndWidenEveryNumberAlike) {
  const std::vector<float> values = HardToRound();
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const void* const every = all.data();
  for (const int32_t half : {TFR_FLOAT16, TFR_BFLOAT16}) {
    std::vector<uint16_t> want(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      want[i] = half == TFR_FLOAT16 ? ToFloat16(values[i]).bits
                                    : ToBFloat16(values[i]).bits;
    }
    std::vector<const ReduceTable*> tables = OtherTables();
    tables.push_back(&GenericReduceTable());
    for (const ReduceTable* table : tables) {
      CASE(table->name, ", dtype ", half);
      std::vector<uint16_t> got(values.size());
      table->narrow(TFR_FLOAT32, half, 1.0, values.data(), got.data(),
                    values.size());
      EXPECT_TRUE(want == got);
      ReduceSpec spec = Spec(TFR_FLOAT32, TFR_SUM);
      spec.source_dtype = half;
      std::vector<float> wide(all.size());
      table->reduce(spec, &every, 1, wide.data(), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const uint16_t bits = all[i];
        const float exact = half == TFR_FLOAT16 ? ToFloat(Float16{bits})
                                                : ToFloat(BFloat16{bits});
        ASSERT_TRUE(std::isnan(exact) ? std::isnan(wide[i])
                                      : half_scalar::FloatToBits(exact) ==
                                            half_scalar::FloatToBits(wide[i]));
      }
    }
  }
}

TEST(NarrowMayWriteOverItsInput) {
  for (const ReduceTable* table : OtherTables()) {
    std::vector<float> data(1029, 0.5f);
    table->narrow(TFR_FLOAT32, TFR_FLOAT16, 2.0, data.data(), data.data(),
                  data.size());
    std::vector<uint16_t> halves(data.size());
    std::memcpy(halves.data(), data.data(), 2 * data.size());
    for (const uint16_t bits : halves) ASSERT_EQ(bits, 0x3c00);
  }
}

}  // namespace
}  // namespace tfring
