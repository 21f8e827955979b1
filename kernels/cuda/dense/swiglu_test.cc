#include "kernels/cuda/dense/swiglu.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cuda/dense/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

TYPED_TEST_SUITE(TypedKernelTest, ActivationTypes, TypeNames);

TYPED_TEST(TypedKernelTest, SwiGluMatchesTheReferenceForwardAndBackward) {
  using T = TypeParam;
  for (const int64_t rows : kTestRows) {
    for (const int64_t columns : kTestColumns) {
      const std::string what = absl::StrCat(rows, "x", columns);
      const int64_t count = rows * columns;
      const Tensor gate_up = RandomOf<T>(2 * count, 1, 4.0);
      const Tensor out_grad = RandomOf<T>(count, 2);
      const Results results = InEveryOrder(what, [&](Device& device) -> Results {
        const auto in = Send<T>(device, gate_up, "gate_up");
        const auto out = Fresh<T>(device, count, "out");
        const auto grad = Fresh<T>(device, 2 * count, "gate_up_grad");
        const auto out_grad_device = Send<T>(device, out_grad, "out_grad");
        SB_EXPECT_OK(LaunchSwiGluForward<T>(&device, rows, columns, in, out));
        SB_EXPECT_OK(LaunchSwiGluBackward<T>(&device, rows, columns, in, out_grad_device, grad));
        SB_EXPECT_OK(LaunchSwiGluBackward<T>(&device, rows, columns, in, out_grad_device, in));
        return {Fetch(device, out, count), Fetch(device, grad, 2 * count),
                Fetch(device, in, 2 * count)};
      });
      ExpectNear<T>(results[0], reference::SwiGluForward(columns, gate_up), what + " out");
      ExpectNear<T>(results[1], reference::SwiGluBackward(columns, gate_up, out_grad),
                    what + " gradient");
      EXPECT_EQ(results[1], results[2]) << what << ": the gradient in place of its input";
    }
  }
}

TEST(SwiGluTest, ExtremeGatesGiveTheirLimitsRatherThanNaN) {
  Device device;
  const auto in = Send<float>(device, {-200, 200, 1, 1}, "gate_up");  // two gates, two ups
  const auto out = Fresh<float>(device, 2, "out");
  const auto grad = Fresh<float>(device, 4, "gate_up_grad");
  SB_EXPECT_OK(LaunchSwiGluForward<float>(&device, 1, 2, in, out));
  SB_EXPECT_OK(
      LaunchSwiGluBackward<float>(&device, 1, 2, in, Send<float>(device, {1, 1}, "grad"), grad));
  EXPECT_EQ(Fetch(device, out, 2), (std::vector<float>{0, 200}));
  EXPECT_EQ(Fetch(device, grad, 4), (std::vector<float>{0, 1, 0, 200}));
}

TEST(SwiGluTest, MoreRowsThanWarpsInTheLargestGridAreAllDone) {
  const int64_t rows = 17000;
  const Tensor gate_up = RandomOf<float>(2 * rows, 1);
  Device device;
  const auto out = Fresh<float>(device, rows, "out");
  SB_EXPECT_OK(
      LaunchSwiGluForward<float>(&device, rows, 1, Send<float>(device, gate_up, "gate_up"), out));
  ExpectNear<float>(Fetch(device, out, rows), reference::SwiGluForward(1, gate_up), "out");
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
