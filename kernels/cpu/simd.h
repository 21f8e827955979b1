#pragma once

// Vectors of the widest kind that the target has, by the compiler's vector extensions.
// For sources of kernels/cpu only: the width depends on their -march.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace sparsebalance::kernels::cpu {

#if defined(__AVX512F__)
inline constexpr int64_t kLanes = 16;
#elif defined(__AVX__)
inline constexpr int64_t kLanes = 8;
#else
inline constexpr int64_t kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));       // NOLINT
typedef int32_t IntVec __attribute__((vector_size(kLanes * sizeof(float))));  // NOLINT

constexpr int64_t RoundUpToLanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

inline Vec Load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
inline Vec Broadcast(float x) { return Vec{} + x; }
inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }

template <int64_t kShift, size_t... kIndex>
inline Vec RotateLanes(Vec v, std::index_sequence<kIndex...>) {
  return __builtin_shufflevector(v, v, ((kIndex + kShift) % kLanes)...);
}

// Folds the lanes by halves: the sum's order is fixed.
template <int64_t kWidth = kLanes / 2>
inline float HorizontalMax(Vec v) {
  v = Max(v, RotateLanes<kWidth>(v, std::make_index_sequence<kLanes>()));
  if constexpr (kWidth > 1) return HorizontalMax<kWidth / 2>(v);
  return v[0];
}

template <int64_t kWidth = kLanes / 2>
inline float HorizontalSum(Vec v) {
  v += RotateLanes<kWidth>(v, std::make_index_sequence<kLanes>());
  if constexpr (kWidth > 1) return HorizontalSum<kWidth / 2>(v);
  return v[0];
}

// 2^x to about 1 unit in the last place; exactly 0 below -126 and for -infinity. x <= 126.
inline Vec Exp2(Vec x) {
  // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits of the sum.
  const Vec shifter = Broadcast(12582912.0F);
  const Vec floor = Broadcast(-126.0F);
  const IntVec underflow = x < floor;
  const Vec clamped = underflow ? floor : x;
  const Vec shifted = clamped + shifter;
  const Vec f = clamped - (shifted - shifter);  // in [-0.5, 0.5]
  // Taylor series of 2^f: coefficients ln(2)^n / n!.
  Vec p = Broadcast(1.52527338e-5F);
  p = p * f + 1.54035304e-4F;
  p = p * f + 1.33335581e-3F;
  p = p * f + 9.61812911e-3F;
  p = p * f + 5.55041087e-2F;
  p = p * f + 2.40226507e-1F;
  p = p * f + 6.93147181e-1F;
  p = p * f + 1.0F;
  IntVec bits;
  IntVec exponent;
  std::memcpy(&bits, &p, sizeof(p));
  std::memcpy(&exponent, &shifted, sizeof(shifted));
  bits += exponent << 23;
  std::memcpy(&p, &bits, sizeof(p));
  return underflow ? Vec{} : p;
}

inline constexpr float kLog2E = 1.44269504088896341F;
inline constexpr float kLn2 = 0.693147180559945309F;

inline Vec Exp(Vec x) { return Exp2(x * kLog2E); }

}  // namespace sparsebalance::kernels::cpu
