// float32 from and to the two 16-bit formats of model files: bfloat16 (the upper half of a
// float32) and IEEE binary16. Branch-free, so that loops over them are vectorized. Exact where the
// value exists in the other format, else rounded to nearest, ties to even; beyond the largest
// finite value is infinity; a NaN stays a (quiet) NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace sparsebalance::model_io {

inline float FromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40;  // rounding could turn a NaN into infinity
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
}

inline float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1F;
  const uint32_t fraction = bits & 0x3FF;
  // Exponents of normal numbers move from bias 15 to bias 127; the largest stays the largest.
  const uint32_t rebased = exponent == 0x1F ? 0xFF : exponent + 112;
  const auto normal = rebased << 23 | fraction << 13;
  // Subnormal: fraction * 2^-24, exact in float32.
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-24F);
  return std::bit_cast<float>(sign | (exponent == 0 ? subnormal : normal));
}

inline uint16_t ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  // Normal: 13 bits of the fraction are rounded off; a carry into the exponent is what rounding up
  // to the next power of two means.
  const uint32_t normal = (magnitude - (112U << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  // Below 2^-14: adding 0.5 puts units of 2^-24 in the last places, rounded by the addition.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
                             std::bit_cast<uint32_t>(0.5F);
  uint32_t out = magnitude < (113U << 23) ? subnormal : normal;
  out = magnitude >= 0x477FF000 ? 0x7C00 : out;                             // from 65520: infinity
  out = magnitude > 0x7F800000 ? 0x7E00 | (magnitude >> 13 & 0x1FF) : out;  // NaN
  return static_cast<uint16_t>(sign | out);
}

}  // namespace sparsebalance::model_io
