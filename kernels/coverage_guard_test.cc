#include "kernels/coverage_guard.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/packed_blocks.h"

namespace sparsebalance::kernels {
namespace {

// Coverage at 1, 2, 3, 4, 6, 8, 10.
const std::vector<double> kCurve = {0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0};

TEST(CoverageGridTest, PointsInClosedFormAreThoseOfTheList) {
  for (int64_t blocks = 1; blocks < 3000; ++blocks) {
    std::vector<int64_t> points;
    const int size = CoverageGridSize(blocks);
    for (int i = 0; i + 1 < size; ++i) points.push_back(CoverageGridPoint(i));
    points.push_back(blocks);
    ASSERT_EQ(points, CoverageGrid(blocks)) << blocks;
  }
}

TEST(GuardTest, KeepsABudgetThatCoversEnough) {
  EXPECT_EQ(RealizedBudget(10, kCurve, 6, 8, 0.2), 6);
  EXPECT_EQ(RealizedBudget(10, kCurve, 6, 6, 0.0), 6);
}

TEST(GuardTest, RaisesToTheLeastBudgetThatCoversEnough) {
  EXPECT_EQ(RealizedBudget(10, kCurve, 1, 8, 0.1), 7);  // needs 0.81: 5 has 0.75, 6 0.8, 7 0.85
  EXPECT_EQ(RealizedBudget(10, kCurve, 2, 8, 0.2), 5);  // needs 0.72
  EXPECT_EQ(RealizedBudget(10, kCurve, 1, 8, 1.0), 1);
}

TEST(GuardTest, RaisesAtMostToTheBaseBudget) {
  EXPECT_EQ(RealizedBudget(10, kCurve, 1, 3, 0.0), 3);
}

TEST(GuardTest, LeavesBudgetsAboveTheBaseAlone) {
  EXPECT_EQ(RealizedBudget(10, kCurve, 9, 3, 0.0), 9);
}

TEST(GuardTest, CutsBudgetsToTheNumberOfBlocks) {
  EXPECT_EQ(RealizedBudget(10, kCurve, 50, 80, 0.1), 10);
  EXPECT_EQ(RealizedBudget(1, std::vector<double>{1.0}, 8, 8, 0.1), 1);
}

}  // namespace
}  // namespace sparsebalance::kernels
