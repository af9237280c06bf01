// The arithmetic of Adasum on one pair of vectors, in float64.
#ifndef TFRING_CORE_COLLECTIVES_ADASUM_MATH_H_
#define TFRING_CORE_COLLECTIVES_ADASUM_MATH_H_

#include <cstddef>

namespace tfring {

// Inner products of two vectors, or of parts of them.
struct AdasumProducts {
  double ab = 0;
  double aa = 0;
  double bb = 0;

  void Add(const AdasumProducts& other) {
    ab += other.ab;
    aa += other.aa;
    bb += other.bb;
  }
};

// What the vectors are multiplied with before they are added.
struct AdasumFactors {
  explicit AdasumFactors(const AdasumProducts& p)
      : a(p.aa == 0 ? 1 : 1 - p.ab / (2 * p.aa)),
        b(p.bb == 0 ? 1 : 1 - p.ab / (2 * p.bb)) {}
  double a;
  double b;
};

// Eight sums side by side, so that the processor need not wait for each; their
// order depends on `count` only.
template <typename T>
AdasumProducts Multiply(const T* a, const T* b, size_t count) {
  constexpr size_t kLanes = 8;
  double ab[kLanes] = {};
  double aa[kLanes] = {};
  double bb[kLanes] = {};
  const auto add = [&](size_t lane, double x, double y) {
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      add(lane, static_cast<double>(a[i + lane]),
          static_cast<double>(b[i + lane]));
    }
  }
  for (size_t lane = 0; i + lane < count; ++lane) {
    add(lane, static_cast<double>(a[i + lane]),
        static_cast<double>(b[i + lane]));
  }
  AdasumProducts products;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    products.Add({ab[lane], aa[lane], bb[lane]});
  }
  return products;
}

// own[i] = own[i] * own_factor + other[i] * other_factor, rounded once.
template <typename T>
void Combine(T* own, double own_factor, const T* other, double other_factor,
             size_t count) {
  for (size_t i = 0; i < count; ++i) {
    own[i] = static_cast<T>(static_cast<double>(own[i]) * own_factor +
                            static_cast<double>(other[i]) * other_factor);
  }
}

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ADASUM_MATH_H_
