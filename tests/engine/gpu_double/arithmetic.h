// How the double adds up: in the order of the ranks, rounded to the dtype after
// each step, each input multiplied by a factor of the dtype first.
#ifndef TFRING_TESTS_ENGINE_ARITHMETIC_H_
#define TFRING_TESTS_ENGINE_ARITHMETIC_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "custom_ops/core/common/half_scalar.h"
#include "custom_ops/core/nccl/nccl_api.h"

namespace gpu_double {

// A reduction: a built-in one, or a sum of scaled inputs.
struct Reduction {
  int op = 0;  // ncclRedOp_t
  bool scaled = false;
  double factor = 1.0;
};

template <typename T>
T Combine(T a, T b, int op) {
  switch (op) {
    case tfring::kNcclProd:
      return static_cast<T>(a * b);
    case tfring::kNcclMax:
      return std::max(a, b);
    case tfring::kNcclMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

template <typename T>
struct Plain {
  using Wide = T;
  static Wide Load(T value) { return value; }
  static T Store(Wide value) { return value; }
};

template <typename Half>
struct Narrow {
  using Wide = float;
  static Wide Load(Half value) { return tfring::half_scalar::ToFloat(value); }
  static Half Store(Wide value);
};
template <>
inline tfring::Float16 Narrow<tfring::Float16>::Store(float value) {
  return tfring::half_scalar::ToFloat16(value);
}
template <>
inline tfring::BFloat16 Narrow<tfring::BFloat16>::Store(float value) {
  return tfring::half_scalar::ToBFloat16(value);
}

template <typename T, typename Traits>
void ReduceAs(const std::vector<const char*>& inputs, const Reduction& how,
              size_t count, char* output) {
  using Wide = typename Traits::Wide;
  auto* const out = reinterpret_cast<T*>(output);
  const auto at = [&](size_t rank, size_t i) {
    const T value = reinterpret_cast<const T*>(inputs[rank])[i];
    const Wide wide = Traits::Load(value);
    if (!how.scaled) return wide;
    return Traits::Load(
        Traits::Store(static_cast<Wide>(wide * static_cast<Wide>(how.factor))));
  };
  for (size_t i = 0; i < count; ++i) {
    Wide sum = at(0, i);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      sum = Traits::Load(Traits::Store(Combine(sum, at(rank, i), how.op)));
    }
    out[i] = Traits::Store(sum);
  }
}

template <typename T>
void ReducePlain(const std::vector<const char*>& inputs, const Reduction& how,
                 size_t count, char* output) {
  ReduceAs<T, Plain<T>>(inputs, how, count, output);
}

// `inputs`: one per rank; `output` may be one of them.
inline void ReduceInto(int dtype, const std::vector<const char*>& inputs,
                       const Reduction& how, size_t count, char* output) {
  const bool compares =
      how.op == tfring::kNcclMin || how.op == tfring::kNcclMax;
  switch (dtype) {
    case tfring::kNcclInt8:
      return ReducePlain<int8_t>(inputs, how, count, output);
    case tfring::kNcclUint8:
      return ReducePlain<uint8_t>(inputs, how, count, output);
    case tfring::kNcclInt32:
      if (compares) return ReducePlain<int32_t>(inputs, how, count, output);
      return ReducePlain<uint32_t>(inputs, how, count, output);  // wraps
    case tfring::kNcclInt64:
      if (compares) return ReducePlain<int64_t>(inputs, how, count, output);
      return ReducePlain<uint64_t>(inputs, how, count, output);
    case tfring::kNcclFloat32:
      return ReducePlain<float>(inputs, how, count, output);
    case tfring::kNcclFloat64:
      return ReducePlain<double>(inputs, how, count, output);
    case tfring::kNcclFloat16:
      return ReduceAs<tfring::Float16, Narrow<tfring::Float16>>(inputs, how,
                                                                count, output);
    default:
      return ReduceAs<tfring::BFloat16, Narrow<tfring::BFloat16>>(
          inputs, how, count, output);
  }
}

inline size_t ElementBytes(int dtype) {
  switch (dtype) {
    case tfring::kNcclInt8:
    case tfring::kNcclUint8:
      return 1;
    case tfring::kNcclFloat16:
    case tfring::kNcclBfloat16:
      return 2;
    case tfring::kNcclInt32:
    case tfring::kNcclFloat32:
      return 4;
    default:
      return 8;
  }
}

}  // namespace gpu_double

#endif  // TFRING_TESTS_ENGINE_ARITHMETIC_H_
