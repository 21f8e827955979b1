#include "kernels/cpu/router.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::kernels::cpu {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Top(const std::vector<float>& scores, int64_t wanted) {
  std::vector<int32_t> keys(scores.size());
  std::vector<int32_t> out(wanted);
  TopIndices(scores.data(), static_cast<int64_t>(scores.size()), wanted, keys.data(), out.data());
  return out;
}

TEST(TopIndicesTest, TakesTheLargestInOrderOfIndex) {
  EXPECT_THAT(Top({1, 5, -3, 4, 2}, 3), ElementsAre(1, 3, 4));
  EXPECT_THAT(Top({1, 5, -3, 4, 2}, 1), ElementsAre(1));
  EXPECT_THAT(Top({-1, -5, -3}, 2), ElementsAre(0, 2));
  EXPECT_THAT(Top({3, 2}, 2), ElementsAre(0, 1));
  EXPECT_TRUE(Top({3, 2}, 0).empty());
}

TEST(TopIndicesTest, BreaksTiesByTheLowerIndex) {
  EXPECT_THAT(Top({7, 7, 7, 7}, 2), ElementsAre(0, 1));
  EXPECT_THAT(Top({1, 2, 2, 3, 2}, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(Top({-0.0F, 0.0F, -0.0F, 0.0F}, 2), ElementsAre(0, 1));
}

TEST(TopIndicesTest, HandlesInfinitiesAndTheSmallestNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_THAT(Top({-inf, 0, inf, tiny, -tiny}, 2), ElementsAre(2, 3));
  EXPECT_THAT(Top({-inf, -inf, -inf}, 2), ElementsAre(0, 1));
}

TEST(TopIndicesTest, StillGivesAsManyIndicesWhereScoresAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<int32_t> top = Top({nan, nan, 1, nan}, 3);
  for (size_t i = 0; i + 1 < top.size(); ++i) EXPECT_LT(top[i], top[i + 1]);
  EXPECT_LT(top.back(), 4);
}

TEST(TopIndicesTest, AgreesWithAStableSortOnScoresWithManyTies) {
  std::mt19937 generator(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> scores(1 + generator() % 90);
    for (float& s : scores) s = static_cast<float>(static_cast<int>(generator() % 21) - 10) / 4.0F;
    const auto wanted = static_cast<int64_t>(generator() % (scores.size() + 1));
    std::vector<int32_t> expected(scores.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    expected.resize(wanted);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(Top(scores, wanted), expected);
  }
}

}  // namespace
}  // namespace sparsebalance::kernels::cpu
