#pragma once

// What tests of emulated kernels share.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/emulation/device.h"

namespace sparsebalance::kernels::emulation {

inline constexpr Order kAllOrders[] = {Order::kForward, Order::kReversed, Order::kShuffled};

inline std::string OrderName(const testing::TestParamInfo<Order>& info) {
  return info.param == Order::kForward    ? "Forward"
         : info.param == Order::kReversed ? "Reversed"
                                          : "Shuffled";
}

// Device memory with these values.
template <typename T>
Pointer<T, Space::kGlobal> Upload(Device& device, const std::vector<T>& values,
                                  std::string_view name) {
  auto pointer = device.Allocate<T>(static_cast<int64_t>(values.size()), name).value();
  EXPECT_TRUE(
      device.CopyToDevice(values.data(), static_cast<int64_t>(values.size()), pointer).ok());
  return pointer;
}

template <typename T>
std::vector<T> Download(Device& device, Pointer<T, Space::kGlobal> pointer, int64_t count) {
  std::vector<T> values(count);
  EXPECT_TRUE(device.CopyToHost(pointer, count, values.data()).ok());
  return values;
}

// Numbers in [-1, 1) by a fixed sequence.
inline std::vector<cuda::Bf16> RandomBf16(int64_t count, uint32_t seed) {
  std::vector<cuda::Bf16> values(count);
  for (cuda::Bf16& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = cuda::Bf16(static_cast<float>(seed >> 8) / 8388608.0F - 1.0F);
  }
  return values;
}

}  // namespace sparsebalance::kernels::emulation
