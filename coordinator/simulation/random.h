// The same numbers on every machine: the standard library's distributions are not.
#pragma once

#include <cstdint>
#include <random>

namespace sparsebalance::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // In [0, 1).
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double Between(double low, double high) { return low + (high - low) * Unit(); }
  // In [0, bound), bound >= 1.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>(Unit() * static_cast<double>(bound));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace sparsebalance::simulation
