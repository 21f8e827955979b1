// AdamW, and the sums that gradients go through before it.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/dense/adamw.h"
#include "kernels/cuda/dense/reduce.h"
#include "kernels/cuda/dense/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

TYPED_TEST_SUITE(TypedKernelTest, ActivationTypes, TypeNames);

constexpr AdamWArgs kArgs{.learning_rate = 0.01F, .weight_decay = 0.1F, .gradient_scale = 0.5F};

// Three steps with the same gradient; `shift`: where in memory the elements begin.
template <typename G>
void ExpectRightUpdates(int64_t count, int64_t shift, bool with_copy) {
  const std::string what = absl::StrCat(count, " elements from ", shift);
  const Tensor grad = RandomOf<G>(count + shift, 1);
  const Tensor value = RandomOf<float>(count + shift, 2);
  const Tensor zeros(count + shift, 0.0);
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto grads = Send<G>(device, grad, "grad");
    const auto values = Send<float>(device, value, "value");
    const auto m = Send<float>(device, zeros, "m");
    const auto v = Send<float>(device, zeros, "v");
    const auto copy = Send<Bf16>(device, value, "copy");
    AdamWArgs args = kArgs;
    for (args.step = 1; args.step <= 3; ++args.step) {
      SB_EXPECT_OK(LaunchAdamW<G>(&device, count, args, grads + shift, values + shift, m + shift,
                                  v + shift, with_copy ? copy + shift : DevicePtr<Bf16>(nullptr)));
    }
    return {Fetch(device, values, count + shift), Fetch(device, m, count + shift),
            Fetch(device, v, count + shift), Fetch(device, copy, count + shift)};
  });
  Tensor expected = value;
  Tensor m = zeros;
  Tensor v = zeros;
  const double beta1 = kArgs.beta1;
  const double beta2 = kArgs.beta2;
  for (int step = 1; step <= 3; ++step) {
    for (int64_t i = shift; i < count + shift; ++i) {
      const double g = 0.5 * grad[i];
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double update = m[i] / (1 - std::pow(beta1, step)) /
                            (std::sqrt(v[i] / (1 - std::pow(beta2, step))) + kArgs.epsilon);
      expected[i] -= kArgs.learning_rate * (update + kArgs.weight_decay * expected[i]);
    }
  }
  ExpectNear<float>(results[0], expected, what + " value");
  ExpectNear<float>(results[1], m, what + " m");
  ExpectNear<float>(results[2], v, what + " v");
  for (int64_t i = 0; i < count + shift; ++i) {
    const float source = with_copy && i >= shift ? results[0][i] : static_cast<float>(value[i]);
    ASSERT_EQ(results[3][i], static_cast<float>(Bf16(source))) << what << ", copy at " << i;
  }
}

TYPED_TEST(TypedKernelTest, AdamWMatchesTheFormulaAndKeepsTheRoundedCopy) {
  for (const int64_t count : {1, 3, 4, 255, 1025, 5001}) {
    for (const int64_t shift : {0, 1, 8}) {
      for (const bool with_copy : {false, true}) {
        ExpectRightUpdates<TypeParam>(count, shift, with_copy);
      }
    }
  }
}

TEST(OptimizerTest, AdamWReachesMoreElementsThanTheLargestGridHasThreads) {
  ExpectRightUpdates<float>(2048 * 256 + 5, 1, true);
}

TEST(OptimizerTest, AdamWRefusesAStepBeforeTheFirst) {
  Device device;
  AdamWArgs args = kArgs;
  args.step = 0;
  EXPECT_EQ(
      LaunchAdamW<float>(&device, 1, args, nullptr, nullptr, nullptr, nullptr, nullptr).code(),
      absl::StatusCode::kInvalidArgument);
}

template <typename T>
void ExpectRightColumnSums(int64_t rows, int64_t columns) {
  const std::string what = absl::StrCat(rows, "x", columns);
  const Tensor x = RandomOf<T>(rows * columns, 1);
  const Tensor before = RandomOf<float>(columns, 2);
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto out = Send<float>(device, before, "out");
    SB_EXPECT_OK(
        LaunchAddColumnSums<T>(&device, rows, columns, Send<T>(device, x, "x"), out,
                               Scratch<float>(device, AddColumnSumsScratch(rows, columns))));
    return {Fetch(device, out, columns)};
  });
  Tensor expected = before;
  for (int64_t i = 0; i < rows * columns; ++i) expected[i % columns] += x[i];
  ExpectNear<float>(results[0], expected, what);
}

TYPED_TEST(TypedKernelTest, ColumnSumsAreThoseOfDoubles) {
  for (const int64_t rows : kTestRows) {
    for (const int64_t columns : kTestColumns) ExpectRightColumnSums<TypeParam>(rows, columns);
  }
  ExpectRightColumnSums<TypeParam>(20001, 8);  // more rows than pieces of the least size
}

template <typename T>
void ExpectRightNorm(int64_t count) {
  const Tensor x = RandomOf<T>(count + 1, 1);
  std::vector<double> norms;
  for (const emulation::Order order : emulation::kAllOrders) {
    Device device({.order = order});
    // The same numbers at another address add up to the same bits.
    for (const int64_t shift : {0, 1}) {
      Tensor shifted(x.begin(), x.end() - 1);
      shifted.insert(shifted.begin(), shift, 9.0);
      const auto out = emulation::Upload(device, std::vector<double>{2}, "out");
      SB_EXPECT_OK(LaunchAddSquaredNorm<T>(&device, count, Send<T>(device, shifted, "x") + shift,
                                           out,
                                           Scratch<double>(device, AddSquaredNormScratch(count))));
      norms.push_back(emulation::Download(device, out, 1)[0]);
    }
  }
  double expected = 2;
  for (int64_t i = 0; i < count; ++i) expected += x[i] * x[i];
  for (const double norm : norms) EXPECT_EQ(norm, norms[0]) << count << " elements";
  EXPECT_NEAR(norms[0], expected, 1e-12 * expected) << count << " elements";
}

TYPED_TEST(TypedKernelTest, TheSquaredNormIsThatOfDoublesAndHasOneOrder) {
  for (const int64_t count : {1, 7, 64, 255, 8191, 8193, 40000}) ExpectRightNorm<TypeParam>(count);
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
