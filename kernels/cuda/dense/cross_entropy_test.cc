#include "kernels/cuda/dense/cross_entropy.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cuda/dense/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr double kLossScale = 128;

struct Case {
  int64_t rows, classes;
  Tensor logits, weights;
  std::vector<int32_t> targets;
};

template <typename T>
Case RandomCase(int64_t rows, int64_t classes, double scale) {
  Case c{rows, classes, RandomOf<T>(rows * classes, 1, scale), RandomOf<float>(rows, 2), {}};
  for (int64_t r = 0; r < rows; ++r) {
    c.weights[r] = r % 5 == 3 ? 0.0 : std::abs(c.weights[r]) + 0.25;
    c.targets.push_back(static_cast<int32_t>((r * 7919 + 3) % classes));
  }
  return c;
}

// Loss and gradient; in place, apart, and the loss without a gradient.
template <typename T>
void ExpectRightLoss(const Case& c) {
  const std::string what = absl::StrCat(c.rows, " rows, ", c.classes, " classes");
  const CrossEntropyShape shape{c.rows, c.classes, kLossScale};
  const int64_t count = c.rows * c.classes;
  std::vector<double> losses;
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto logits = Send<T>(device, c.logits, "logits");
    const auto grad = Fresh<T>(device, count, "logits_grad");
    const auto targets = emulation::Upload(device, c.targets, "targets");
    const auto weights = Send<float>(device, c.weights, "weights");
    const auto bad = emulation::Upload(device, std::vector<int32_t>{0}, "bad_targets");
    for (const DevicePtr<T>& to : {grad, DevicePtr<T>(nullptr), logits}) {
      const auto sum = emulation::Upload(device, std::vector<double>{0.5}, "loss_sum");
      SB_EXPECT_OK(LaunchCrossEntropy<T>(&device, shape, logits, targets, weights, to, sum, bad,
                                         Scratch<double>(device, CrossEntropyScratch(shape))));
      losses.push_back(emulation::Download(device, sum, 1)[0]);
    }
    EXPECT_EQ(emulation::Download(device, bad, 1)[0], 0) << what;
    return {Fetch(device, grad, count), Fetch(device, logits, count)};
  });
  Tensor expected = reference::CrossEntropyGrad(c.classes, c.logits, c.targets, c.weights);
  for (double& value : expected) value *= kLossScale;
  ExpectNear<T>(results[0], expected, what + " gradient");
  EXPECT_EQ(results[0], results[1]) << what << ": the gradient in place of the logits";
  for (const double loss : losses) EXPECT_EQ(loss, losses[0]) << what << ": loss";
  const double loss = reference::CrossEntropyLoss(c.classes, c.logits, c.targets, c.weights);
  EXPECT_NEAR(losses[0], 0.5 + loss, 1e-6 * (0.5 + loss)) << what;
}

TYPED_TEST_SUITE(TypedKernelTest, ActivationTypes, TypeNames);

TYPED_TEST(TypedKernelTest, CrossEntropyMatchesTheReference) {
  for (const int64_t rows : kTestRows) {
    for (const int64_t classes : kTestColumns) {
      // One class alone has no gradient, of which no share could be wrong.
      if (classes > 1) ExpectRightLoss<TypeParam>(RandomCase<TypeParam>(rows, classes, 8.0));
    }
  }
}

TYPED_TEST(TypedKernelTest, CrossEntropyMatchesTheReferenceOverLargeVocabularies) {
  for (const int64_t classes : {8192, 50000, 50257}) {
    ExpectRightLoss<TypeParam>(RandomCase<TypeParam>(5, classes, 12.0));
  }
}

TYPED_TEST(TypedKernelTest, CrossEntropyOfWeightZeroIsZeroWhateverLogitsAndTarget) {
  using T = TypeParam;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t classes : {7, 64}) {
    Device device;
    const Tensor logits(2 * classes, nan);
    const auto in = Send<T>(device, logits, "logits");
    const auto sum = emulation::Upload(device, std::vector<double>{0}, "loss_sum");
    const auto bad = emulation::Upload(device, std::vector<int32_t>{0}, "bad_targets");
    const CrossEntropyShape shape{2, classes, 1};
    SB_EXPECT_OK(LaunchCrossEntropy<T>(
        &device, shape, in, emulation::Upload(device, std::vector<int32_t>{-100, 1 << 30}, "t"),
        Send<float>(device, {0, 0}, "weights"), in, sum, bad,
        Scratch<double>(device, CrossEntropyScratch(shape))));
    EXPECT_EQ(Fetch(device, in, 2 * classes), std::vector<float>(2 * classes, 0.0F));
    EXPECT_EQ(emulation::Download(device, sum, 1)[0], 0.0);
    EXPECT_EQ(emulation::Download(device, bad, 1)[0], 0);
  }
}

TEST(CrossEntropyTest, TargetsOutsideOfTheClassesAreCountedAndGiveNothing) {
  Device device;
  const auto in = Send<float>(device, {1, 2, 3, 4, 5, 6}, "logits");
  const auto sum = emulation::Upload(device, std::vector<double>{0}, "loss_sum");
  const auto bad = emulation::Upload(device, std::vector<int32_t>{0}, "bad_targets");
  const CrossEntropyShape shape{2, 3, 1};
  SB_EXPECT_OK(LaunchCrossEntropy<float>(
      &device, shape, in, emulation::Upload(device, std::vector<int32_t>{-1, 3}, "targets"),
      Send<float>(device, {1, 1}, "weights"), in, sum, bad,
      Scratch<double>(device, CrossEntropyScratch(shape))));
  EXPECT_EQ(Fetch(device, in, 6), std::vector<float>(6, 0.0F));
  EXPECT_EQ(emulation::Download(device, sum, 1)[0], 0.0);
  EXPECT_EQ(emulation::Download(device, bad, 1)[0], 2);
}

TEST(CrossEntropyTest, HugeLogitsAndMinusInfinityDoNotOverflow) {
  Case c{2, 8, Tensor(16, -std::numeric_limits<double>::infinity()), {1, 1}, {1, 2}};
  c.logits[1] = 3e38;
  c.logits[8 + 2] = -1e4;
  c.logits[8 + 5] = -1e4;
  ExpectRightLoss<float>(c);
}

TEST(CrossEntropyTest, MoreRowsThanBlocksInTheLargestGridAreAllDone) {
  ExpectRightLoss<float>(RandomCase<float>(2100, 3, 2.0));
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
