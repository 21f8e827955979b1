#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/dropout_mask.h"

namespace sparsebalance::model {

// Random numbers by position: element i is a function of (seed, name, i) alone, so it does not
// depend on the order of parameters. Only integer arithmetic and exact floating-point steps, no
// math library: the same bits on any machine.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name) : key_(Mix(seed)) {
    for (const char c : name) key_ = Mix(key_ ^ static_cast<unsigned char>(c));
  }

  // Normal, mean 0, variance 1: the sum of 12 uniform numbers of 16 bits, centred. Lies within (-6,
  // 6).
  double At(uint64_t i) const {
    uint64_t sum = 0;
    for (uint64_t part = 0; part < 3; ++part) {
      const uint64_t bits = Mix(key_ + (3 * i + part) * kGolden);
      sum += (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48);
    }
    return static_cast<double>(sum) / 65536.0 - 6.0 + 6.0 / 65536.0;
  }

  // Uniform in (-1, 1), multiples of 2^-23: exact in float32.
  double UniformAt(uint64_t i) const {
    const uint64_t bits = Mix(key_ + i * kGolden) >> 41;  // 23 bits
    return (static_cast<double>(2 * bits) + 1.0) / 8388608.0 - 1.0;
  }

 private:
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;
  static constexpr uint64_t Mix(uint64_t x) { return kernels::MixBits(x); }

  uint64_t key_;
};

}  // namespace sparsebalance::model
