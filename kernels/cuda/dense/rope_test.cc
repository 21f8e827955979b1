#include "kernels/cuda/dense/rope.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cuda/dense/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr double kTheta = 1e6;

std::vector<int32_t> Positions(int64_t tokens) {
  std::vector<int32_t> positions(tokens);
  for (int64_t t = 0; t < tokens; ++t) positions[t] = static_cast<int32_t>(t * t * 977 % 131072);
  return positions;
}

template <typename T>
void ExpectRightRotation(int64_t tokens, int heads, int head_dim, int64_t gap) {
  const int64_t width = int64_t{heads} * head_dim;
  const std::string what = absl::StrCat(tokens, " tokens, ", heads, "x", head_dim, ", gap ", gap);
  const RopeShape shape{tokens, heads, head_dim, width + gap};
  const std::vector<int32_t> positions = Positions(tokens);
  const Tensor x = RandomOf<T>(tokens * width, 1);
  // Between the rows lies what is not to be touched.
  Tensor spread((tokens - 1) * shape.row_stride + width, 5.0);
  for (int64_t i = 0; i < tokens * width; ++i) {
    spread[i / width * shape.row_stride + i % width] = x[i];
  }
  const auto count = static_cast<int64_t>(spread.size());
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto table = Fresh<float>(device, tokens * head_dim, "table");
    SB_EXPECT_OK(LaunchRopeTable(&device, tokens, head_dim, kTheta,
                                 emulation::Upload(device, positions, "positions"), table));
    Results out;
    for (const bool inverse : {false, true}) {
      const auto turned = Send<T>(device, spread, "x");
      SB_EXPECT_OK(LaunchRope<T>(&device, shape, table, inverse, turned));
      out.push_back(Fetch(device, turned, count));
    }
    return out;
  });
  for (const bool inverse : {false, true}) {
    const Tensor turned = reference::Rope(heads, head_dim, kTheta, positions, x, inverse);
    Tensor expected = spread;
    for (int64_t i = 0; i < tokens * width; ++i) {
      expected[i / width * shape.row_stride + i % width] = turned[i];
    }
    ExpectNear<T>(results[inverse ? 1 : 0], expected, what + (inverse ? " inverse" : ""));
  }
}

TYPED_TEST_SUITE(TypedKernelTest, ActivationTypes, TypeNames);

TYPED_TEST(TypedKernelTest, RopeMatchesTheReferenceThereAndBack) {
  for (const int64_t tokens : kTestRows) {
    for (const int head_dim : {2, 6, 16, 24, 64, 128}) {
      ExpectRightRotation<TypeParam>(tokens, 3, head_dim, 0);
    }
  }
}

TYPED_TEST(TypedKernelTest, RopeLeavesWhatLiesBetweenTheRowsAlone) {
  for (const int64_t gap : {1, 8, 13}) ExpectRightRotation<TypeParam>(17, 2, 32, gap);
}

TEST(RopeTest, ManyHeadsAndManyTokensAreAllTurned) {
  ExpectRightRotation<float>(9, 40, 6, 0);
  ExpectRightRotation<float>(17000, 1, 2, 0);
}

TEST(RopeTest, TheTableIsRightToTheLastBitsAtLargePositions) {
  const std::vector<int32_t> positions = {0, 1, 131071, 1048575};
  const int head_dim = 64;
  Device device;
  const auto table = Fresh<float>(device, 4 * head_dim, "table");
  SB_EXPECT_OK(LaunchRopeTable(&device, 4, head_dim, kTheta,
                               emulation::Upload(device, positions, "positions"), table));
  Tensor expected;
  for (const double position : {0.0, 1.0, 131071.0, 1048575.0}) {
    for (const bool sine : {false, true}) {
      for (int i = 0; i < head_dim / 2; ++i) {
        const double angle = position * std::pow(kTheta, -2.0 * i / head_dim);
        expected.push_back(sine ? std::sin(angle) : std::cos(angle));
      }
    }
  }
  ExpectClose(Fetch(device, table, 4 * head_dim), expected, "table", 1e-14, 1e-7);
}

TEST(RopeTest, AnOddHeadIsRefused) {
  Device device;
  EXPECT_EQ(LaunchRopeTable(&device, 1, 7, kTheta, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
