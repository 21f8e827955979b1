#pragma once

// bfloat16 with the layout of __nv_bfloat16, on host and device.

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/types.h"

namespace sparsebalance::kernels::cuda {

struct Bf16 {
  uint16_t bits;

  Bf16() = default;
  // To nearest, ties to even. All NaNs become 0x7fff, as on a device.
  SB_HOST_DEVICE explicit Bf16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    uint32_t word = 0;
    std::memcpy(&word, &value, sizeof(word));
    const bool nan = (word & 0x7FFFFFFFU) > 0x7F800000U;
    bits = nan ? 0x7FFF : static_cast<uint16_t>((word + 0x7FFFU + ((word >> 16) & 1U)) >> 16);
#endif
  }
  SB_HOST_DEVICE explicit operator float() const {
    const uint32_t word = uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }
};
static_assert(sizeof(Bf16) == 2 && alignof(Bf16) == 2);

// Two values as mma takes them: `low` in the low half, which comes first in memory.
SB_HOST_DEVICE inline uint32_t PackBf16(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return Bf16(low).bits | (uint32_t{Bf16(high).bits} << 16);
#endif
}

}  // namespace sparsebalance::kernels::cuda
