#pragma once

// What tests of emulated kernels share.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/memory.h"
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

// A device in each order, and what tests of wrong kernels say.
class FaultsTest : public testing::TestWithParam<Order> {
 protected:
  cuda::DevicePtr<float> Floats(int64_t count, const char* name = "x") {
    return Upload(device_, std::vector<float>(count, 1.0F), name);
  }
  // Expects INTERNAL and a message with all of these.
  template <typename... Texts>
  static void ExpectFault(const absl::Status& status, const Texts&... texts) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), testing::AllOf(testing::HasSubstr(texts)...));
  }

  Device device_{{.order = GetParam(), .seed = 3}};
};

}  // namespace sparsebalance::kernels::emulation
