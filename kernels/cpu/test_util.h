#pragma once

// What the kernel tests share: random tensors, comparison, and moving data to a backend.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/reference.h"
#include "kernels/create_backend.h"

namespace sparsebalance::kernels {

#define SB_ASSERT_OK(expr)                              \
  do {                                                  \
    const absl::Status sb_test_status = (expr);         \
    ASSERT_TRUE(sb_test_status.ok()) << sb_test_status; \
  } while (false)

#define SB_EXPECT_OK(expr)                              \
  do {                                                  \
    const absl::Status sb_test_status = (expr);         \
    EXPECT_TRUE(sb_test_status.ok()) << sb_test_status; \
  } while (false)

inline std::unique_ptr<Backend> TestBackend(int threads = 2) {
  return *CreateBackend("cpu", {.threads = threads, .poison_allocations = true});
}

// What a test is linked with: cpu_under_test.cc, or the CUDA backend (cuda/backend/under_test.cc).
std::unique_ptr<Backend> BackendUnderTest();

// Values that float holds exactly, so that kernel and reference see the same input.
inline reference::Tensor RandomTensor(int64_t count, uint32_t seed, double scale = 1.0) {
  std::mt19937 generator(seed);
  reference::Tensor out(count);
  for (double& x : out) {
    x = static_cast<float>(scale * (static_cast<double>(generator()) / 2147483648.0 - 1.0));
  }
  return out;
}

inline DeviceArray<float> ToDevice(Backend* backend, const reference::Tensor& x) {
  const std::vector<float> host(x.begin(), x.end());
  DeviceArray<float> out = *backend->Allocate<float>(static_cast<int64_t>(x.size()));
  SB_EXPECT_OK(backend->CopyToDevice(host, out.span()));
  return out;
}

template <typename T>
DeviceArray<T> ToDevice(Backend* backend, const std::vector<T>& x) {
  DeviceArray<T> out = *backend->Allocate<T>(static_cast<int64_t>(x.size()));
  SB_EXPECT_OK(backend->CopyToDevice(x, out.span()));
  return out;
}

// Tensors of the reference become floats above; these stay doubles.
inline DeviceArray<double> DoublesToDevice(Backend* backend, const std::vector<double>& x) {
  DeviceArray<double> out = *backend->Allocate<double>(static_cast<int64_t>(x.size()));
  SB_EXPECT_OK(backend->CopyToDevice(x, out.span()));
  return out;
}

template <typename T>
std::vector<T> ToHost(Backend* backend, const DeviceArray<T>& x) {
  std::vector<T> out(x.size());
  SB_EXPECT_OK(backend->CopyToHost(x.span(), out.data()));
  return out;
}

// Normalized mean squared error, sum (a - b)^2 / sum b^2, and the largest error as a share of the
// largest value.
inline void ExpectClose(const std::vector<float>& actual, const reference::Tensor& expected,
                        const std::string& what, double nmse = 1e-11, double max_error = 1e-5) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double error = 0;
  double power = 0;
  double worst = 0;
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << what << " at " << i;
    const double difference = actual[i] - expected[i];
    error += difference * difference;
    power += expected[i] * expected[i];
    worst = std::max(worst, std::abs(difference));
    largest = std::max(largest, std::abs(expected[i]));
  }
  EXPECT_LE(error, nmse * power + 1e-30) << what;
  EXPECT_LE(worst, max_error * largest + 1e-15) << what;
}

inline void ExpectClose(Backend* backend, const DeviceArray<float>& actual,
                        const reference::Tensor& expected, const std::string& what,
                        double nmse = 1e-11, double max_error = 1e-5) {
  ExpectClose(ToHost(backend, actual), expected, what, nmse, max_error);
}

// Checks `grad` of the scalar function `loss` at x by central differences in double.
inline void ExpectGradient(const std::function<double(const reference::Tensor&)>& loss,
                           const reference::Tensor& x, const reference::Tensor& grad,
                           const std::string& what) {
  ASSERT_EQ(x.size(), grad.size()) << what;
  for (size_t i = 0; i < x.size(); ++i) {
    constexpr double kStep = 1e-5;
    reference::Tensor moved = x;
    moved[i] = x[i] + kStep;
    const double up = loss(moved);
    moved[i] = x[i] - kStep;
    const double down = loss(moved);
    EXPECT_NEAR(grad[i], (up - down) / (2 * kStep), 1e-7 * (1.0 + std::abs(grad[i])))
        << what << " at " << i;
  }
}

inline double Dot(const reference::Tensor& a, const reference::Tensor& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace sparsebalance::kernels
