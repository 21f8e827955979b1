#include "kernels/cuda/dense/norm.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cuda/dense/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr float kEpsilon = 1e-5F;

// Forward, then backward with and without a weight gradient.
template <typename T, typename W>
void ExpectRightNorm(int64_t rows, int64_t columns) {
  const std::string what = absl::StrCat(rows, "x", columns);
  const NormShape shape{rows, columns, kEpsilon};
  const int64_t count = rows * columns;
  const Tensor x = RandomOf<T>(count, 1);
  const Tensor weight = RandomOf<W>(columns, 2);
  const Tensor y_grad = RandomOf<T>(count, 3);
  const Tensor x_grad = RandomOf<T>(count, 4);
  const Tensor weight_grad = RandomOf<float>(columns, 5);
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto x_device = Send<T>(device, x, "x");
    const auto weight_device = Send<W>(device, weight, "weight");
    const auto y = Fresh<T>(device, count, "y");
    const auto inverse_rms = Fresh<float>(device, rows, "inverse_rms");
    SB_EXPECT_OK(
        (LaunchRmsNormForward<T, W>(&device, shape, x_device, weight_device, y, inverse_rms)));
    const auto y_grad_device = Send<T>(device, y_grad, "y_grad");
    const auto x_grad_device = Send<T>(device, x_grad, "x_grad");
    const auto without = Send<T>(device, x_grad, "x_grad without weight_grad");
    const auto weight_grad_device = Send<float>(device, weight_grad, "weight_grad");
    SB_EXPECT_OK((LaunchRmsNormBackward<T, W>(
        &device, shape, x_device, weight_device, inverse_rms, y_grad_device, x_grad_device,
        weight_grad_device, Scratch<float>(device, RmsNormBackwardScratch(shape)))));
    SB_EXPECT_OK((LaunchRmsNormBackward<T, W>(&device, shape, x_device, weight_device, inverse_rms,
                                              y_grad_device, without, nullptr, nullptr)));
    return {Fetch(device, y, count), Fetch(device, x_grad_device, count),
            Fetch(device, weight_grad_device, columns), Fetch(device, without, count)};
  });
  ExpectNear<T>(results[0], reference::RmsNormForward(columns, kEpsilon, x, weight), what + " y");
  const reference::RmsNormGrads grads =
      reference::RmsNormBackward(columns, kEpsilon, x, weight, y_grad);
  ExpectNear<T>(results[1], Plus(x_grad, grads.x), what + " x_grad");
  ExpectNear<float>(results[2], Plus(weight_grad, grads.weight), what + " weight_grad");
  EXPECT_EQ(results[1], results[3]) << what << ": x_grad without a weight gradient";
}

TEST(NormTest, BothPassesMatchTheReferenceInFloat) {
  for (const int64_t rows : kTestRows) {
    for (const int64_t columns : kTestColumns) ExpectRightNorm<float, float>(rows, columns);
  }
}

TEST(NormTest, BothPassesMatchTheReferenceInBf16WithFloatWeights) {
  for (const int64_t rows : kTestRows) {
    for (const int64_t columns : kTestColumns) ExpectRightNorm<Bf16, float>(rows, columns);
  }
}

TEST(NormTest, BothPassesMatchTheReferenceInBf16) {
  for (const int64_t rows : kTestRows) {
    for (const int64_t columns : kTestColumns) ExpectRightNorm<Bf16, Bf16>(rows, columns);
  }
}

TEST(NormTest, MoreRowsThanWarpsInTheLargestGridAreAllDone) {
  ExpectRightNorm<float, float>(20000, 3);
}

TEST(NormTest, NoRowsLeaveTheGradientAlone) {
  Device device;
  const auto grad = Send<float>(device, {1, 2, 3}, "weight_grad");
  SB_EXPECT_OK((LaunchRmsNormBackward<float, float>(&device, {0, 3}, nullptr, nullptr, nullptr,
                                                    nullptr, nullptr, grad, nullptr)));
  EXPECT_EQ(Fetch(device, grad, 3), (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
