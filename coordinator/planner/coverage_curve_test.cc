#include "coordinator/planner/coverage_curve.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::CoverageCurve Curve(const std::vector<std::pair<uint32_t, double>>& points) {
  v1::CoverageCurve curve;
  for (const auto& [k, c] : points) {
    curve.add_budget_blocks(k);
    curve.add_coverage(c);
  }
  return curve;
}

TEST(CoverageGrid, EndsAtAllBlocks) {
  EXPECT_THAT(CoverageGrid(1), ElementsAre(1));
  EXPECT_THAT(CoverageGrid(2), ElementsAre(1, 2));
  EXPECT_THAT(CoverageGrid(5), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(CoverageGrid(16), ElementsAre(1, 2, 3, 4, 6, 8, 12, 16));
  EXPECT_THAT(CoverageGrid(100), ElementsAre(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100));
}

TEST(CoverageAt, IsLinearBetweenPoints) {
  const v1::CoverageCurve curve = Curve({{1, 0.0}, {5, 0.8}, {9, 1.0}});
  EXPECT_DOUBLE_EQ(CoverageAt(curve, 9, 1), 0.0);
  EXPECT_DOUBLE_EQ(CoverageAt(curve, 9, 3), 0.4);
  EXPECT_DOUBLE_EQ(CoverageAt(curve, 9, 7), 0.9);
  EXPECT_DOUBLE_EQ(CoverageAt(curve, 9, 20), 1.0);
}

TEST(CoverageAt, ContinuesToAllBlocksWhereTheCurveStopsEarly) {
  EXPECT_DOUBLE_EQ(CoverageAt(Curve({{1, 0.0}, {3, 0.5}}), 7, 5), 0.75);
}

TEST(CoverageAt, IsOneForASequenceOfOneBlock) {
  EXPECT_DOUBLE_EQ(CoverageAt(Curve({}), 1, 1), 1.0);
}

TEST(PowerCurve, FollowsTheHarmonicSums) {
  // H(1)/H(3), H(2)/H(3) with H(3) = 11/6.
  const v1::CoverageCurve curve = PowerCurve(4, 1.0);
  EXPECT_THAT(curve.budget_blocks(), ElementsAre(1, 2, 3, 4));
  EXPECT_DOUBLE_EQ(curve.coverage(0), 0.0);
  EXPECT_NEAR(curve.coverage(1), 6.0 / 11, 1e-12);
  EXPECT_NEAR(curve.coverage(2), 9.0 / 11, 1e-12);
  EXPECT_DOUBLE_EQ(curve.coverage(3), 1.0);
}

TEST(PowerCurve, PassesItsOwnCheckAndAgreesWithTheDenseOne) {
  for (const uint32_t blocks : {1U, 2U, 3U, 17U, 288U, 1000U}) {
    for (const double alpha : {0.3, 1.0, 1.8}) {
      const v1::CoverageCurve grid = PowerCurve(blocks, alpha);
      const v1::CoverageCurve dense = DensePowerCurve(blocks, alpha);
      EXPECT_TRUE(CheckCurve(grid, blocks).ok());
      EXPECT_TRUE(CheckCurve(dense, blocks).ok());
      for (const uint32_t k : CoverageGrid(blocks)) {
        EXPECT_NEAR(CoverageAt(grid, blocks, k), CoverageAt(dense, blocks, k), 1e-12);
      }
    }
  }
}

TEST(CheckCurve, SaysWhichPointIsWrong) {
  const auto problem = [](const v1::CoverageCurve& curve, uint32_t blocks) {
    return std::string(CheckCurve(curve, blocks).message());
  };
  EXPECT_THAT(problem(Curve({{2, 0.0}, {4, 1.0}}), 4), HasSubstr("first budget is 2"));
  EXPECT_THAT(problem(Curve({{1, 0.2}, {4, 1.0}}), 4), HasSubstr("coverage at budget 1 is 0.2"));
  EXPECT_THAT(problem(Curve({{1, 0.0}, {3, 0.6}, {3, 0.7}}), 4),
              HasSubstr("budget_blocks[2] is 3"));
  EXPECT_THAT(problem(Curve({{1, 0.0}, {2, 0.6}, {3, 0.5}}), 4), HasSubstr("coverage[2] is 0.5"));
  EXPECT_THAT(problem(Curve({{1, 0.0}, {4, 0.9}}), 4), HasSubstr("all blocks"));
  EXPECT_THAT(problem(Curve({{1, 0.0}, {5, 1.0}}), 4), HasSubstr("above the sequence's 4 blocks"));
  EXPECT_THAT(problem(Curve({{1, 0.0}, {2, 1.5}}), 4), HasSubstr("coverage[1] is 1.5"));
  EXPECT_THAT(problem(Curve({{1, 0.0}, {2, std::nan("")}}), 4), HasSubstr("must be in [0, 1]"));
  EXPECT_THAT(problem(Curve({{1, 0.0}}), 1), HasSubstr("one-block"));
  v1::CoverageCurve uneven = Curve({{1, 0.0}});
  uneven.add_budget_blocks(2);
  EXPECT_THAT(problem(uneven, 4), HasSubstr("2 budgets but 1 coverages"));
}

}  // namespace
}  // namespace sparsebalance::planner
