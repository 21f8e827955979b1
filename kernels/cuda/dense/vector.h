#pragma once

// Loads and stores of N neighbouring elements as floats, whatever their type. Kernels are compiled
// with N = kVector<T>, whose accesses take 16 bytes at once, and with N = 1 for rows and addresses
// that this does not fit.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// Elements of an activation type in 16 bytes.
template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

SB_DEVICE inline float ToFloat(float value) { return value; }
SB_DEVICE inline float ToFloat(Bf16 value) { return static_cast<float>(value); }

SB_DEVICE inline float BitsToFloat(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// N elements from `from`, which is a multiple of 16 bytes, or of their size where that is less.
template <int N, typename T>
SB_DEVICE inline void LoadFloats(DevicePtr<T> from, float (&to)[N]) {
  using Element = std::remove_const_t<T>;
  constexpr int kBytes = N * static_cast<int>(sizeof(Element));
  if constexpr (N == 1) {
    to[0] = ToFloat(from[0]);
  } else if constexpr (std::is_same_v<Element, float>) {
    static_assert(kBytes % 16 == 0);
    SB_UNROLL
    for (int i = 0; i < N; i += 4) {
      const float4 four = LoadVec<float4>(from + i);
      to[i] = four.x;
      to[i + 1] = four.y;
      to[i + 2] = four.z;
      to[i + 3] = four.w;
    }
  } else {
    static_assert(kBytes == 8 || kBytes % 16 == 0);
    // The first of two comes in the low half, and a bf16 is the high half of a float.
    const auto unpack = [&to](int at, uint32_t word) {
      to[at] = BitsToFloat(word << 16);
      to[at + 1] = BitsToFloat(word & 0xFFFF0000U);
    };
    if constexpr (kBytes == 8) {
      const uint2 two = LoadVec<uint2>(from);
      unpack(0, two.x);
      unpack(2, two.y);
    } else {
      SB_UNROLL
      for (int i = 0; i < N; i += 8) {
        const uint4 four = LoadVec<uint4>(from + i);
        unpack(i, four.x);
        unpack(i + 2, four.y);
        unpack(i + 4, four.z);
        unpack(i + 6, four.w);
      }
    }
  }
}

template <int N, typename T>
SB_DEVICE inline void StoreFloats(DevicePtr<T> to, const float (&from)[N]) {
  constexpr int kBytes = N * static_cast<int>(sizeof(T));
  if constexpr (N == 1) {
    to[0] = T(from[0]);
  } else if constexpr (std::is_same_v<T, float>) {
    static_assert(kBytes % 16 == 0);
    SB_UNROLL
    for (int i = 0; i < N; i += 4) {
      StoreVec(to + i, float4{from[i], from[i + 1], from[i + 2], from[i + 3]});
    }
  } else if constexpr (kBytes == 8) {
    StoreVec(to, uint2{PackBf16(from[0], from[1]), PackBf16(from[2], from[3])});
  } else {
    static_assert(kBytes % 16 == 0);
    SB_UNROLL
    for (int i = 0; i < N; i += 8) {
      StoreVec(to + i,
               uint4{PackBf16(from[i], from[i + 1]), PackBf16(from[i + 2], from[i + 3]),
                     PackBf16(from[i + 4], from[i + 5]), PackBf16(from[i + 6], from[i + 7])});
    }
  }
}

// Host: whether accesses of 16 bytes may begin at the pointer; true for null.
template <typename T>
inline bool IsAligned(DevicePtr<T> pointer) {
#if defined(__CUDACC__)
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
#else
  return pointer.offset() % 16 == 0;
#endif
}

// Host: whether rows of `columns` elements allow accesses of n, through all of these pointers.
template <typename... Pointers>
inline bool RowsFit(int n, int64_t columns, Pointers... pointers) {
  return columns % n == 0 && (IsAligned(pointers) && ...);
}

}  // namespace sparsebalance::kernels::cuda
