// Which elements dropout keeps. A function of counters alone, in integer arithmetic: every backend
// gives the same mask, forward and backward need not store it, and a token keeps its mask whatever
// rank and micro-batch it is in.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace sparsebalance::kernels {

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): any change of the input changes about
// half of the bits.
SB_HOST_DEVICE inline constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// An element is dropped where its 32 random bits are below this; rate in [0, 1).
inline uint32_t DropoutThreshold(float rate) {
  return static_cast<uint32_t>(static_cast<double>(rate) * 4294967296.0);
}

// What the elements of one row at one site have in common.
SB_HOST_DEVICE inline constexpr uint64_t DropoutRow(uint64_t key, uint32_t site) {
  return MixBits(key ^ MixBits(site));
}

// Two neighbouring columns share one 64-bit number.
SB_HOST_DEVICE inline constexpr bool DropoutKeeps(uint64_t row, int64_t column,
                                                  uint32_t threshold) {
  const auto pair = static_cast<uint64_t>(column) >> 1;
  const uint64_t bits = MixBits(row + pair);
  return static_cast<uint32_t>(column % 2 == 0 ? bits : bits >> 32) >= threshold;
}

}  // namespace sparsebalance::kernels
