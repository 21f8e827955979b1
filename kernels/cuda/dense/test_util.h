#pragma once

// What the tests of these kernels share: tensors of either type on an emulated device, and runs in
// every order of its threads.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/test_util.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/memory.h"
#include "kernels/emulation/device.h"
#include "kernels/emulation/test_util.h"

namespace sparsebalance::kernels::cuda {

using emulation::Device;
using reference::Tensor;

// With and without whole vectors, warps and pieces.
inline constexpr int64_t kTestRows[] = {1, 15, 17, 63, 65, 129, 257};
inline constexpr int64_t kTestColumns[] = {1, 7, 16, 24, 63, 64, 130, 896};

inline std::vector<float> ToFloats(const std::vector<float>& x) { return x; }
inline std::vector<float> ToFloats(const std::vector<Bf16>& x) {
  std::vector<float> out;
  for (const Bf16 value : x) out.push_back(static_cast<float>(value));
  return out;
}

// Random values that T holds exactly, so that kernel and reference see the same.
template <typename T>
Tensor RandomOf(int64_t count, uint32_t seed, double scale = 1.0) {
  Tensor x = RandomTensor(count, seed, scale);
  for (double& value : x)
    value = static_cast<double>(static_cast<float>(T(static_cast<float>(value))));
  return x;
}

template <typename T>
DevicePtr<T> Send(Device& device, const Tensor& x, std::string_view name) {
  std::vector<T> values;
  for (const double value : x) values.push_back(T(static_cast<float>(value)));
  return emulation::Upload(device, values, name);
}

// Memory that holds NaN.
template <typename T>
DevicePtr<T> Fresh(Device& device, int64_t count, std::string_view name) {
  return device.Allocate<T>(count, name).value();
}
template <typename T>
DevicePtr<T> Scratch(Device& device, int64_t bytes) {
  return Fresh<T>(device, bytes / static_cast<int64_t>(sizeof(T)), "scratch");
}

template <typename T>
std::vector<float> Fetch(Device& device, DevicePtr<T> x, int64_t count) {
  return ToFloats(emulation::Download(device, x, count));
}

using Results = std::vector<std::vector<float>>;

// Runs `body` on a new device in each order, and expects the same bits from all of them.
template <typename Body>
Results InEveryOrder(const std::string& what, Body body) {
  Results first;
  for (const emulation::Order order : emulation::kAllOrders) {
    Device device({.order = order, .seed = 5});
    const Results results = body(device);
    if (order == emulation::Order::kForward) {
      first = results;
      continue;
    }
    EXPECT_EQ(first.size(), results.size()) << what;
    for (size_t i = 0; i < first.size() && i < results.size(); ++i) {
      EXPECT_EQ(first[i].size(), results[i].size()) << what;
      const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
      EXPECT_TRUE(std::equal(first[i].begin(), first[i].end(), results[i].begin(), results[i].end(),
                             [&](float a, float b) { return bits(a) == bits(b); }))
          << what << ": result " << i << " depends on the order of the threads";
    }
  }
  return first;
}

// Normalized mean squared error: rounding to Bf16 once gives at most 2^-16.
template <typename T>
constexpr double MostError() {
  return std::is_same_v<T, float> ? 1e-11 : 1.6e-5;
}

template <typename T>
void ExpectNear(const std::vector<float>& actual, const Tensor& expected, const std::string& what) {
  ExpectClose(actual, expected, what, MostError<T>(), /*max_error=*/1.0);
}

inline Tensor Plus(const Tensor& a, const Tensor& b) {
  Tensor sum(a);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

template <typename T>
class TypedKernelTest : public testing::Test {};

struct TypeNames {
  template <typename T>
  static std::string GetName(int) {
    return std::is_same_v<T, float> ? "Float" : "Bf16";
  }
};
using ActivationTypes = testing::Types<float, Bf16>;

}  // namespace sparsebalance::kernels::cuda
