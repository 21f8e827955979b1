#include "worker/eval/accuracy_report.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::eval {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ModelResult Result(double all, double beyond) {
  return {.steps = 100, .seconds = 2, .accuracy = {all, beyond, {all, beyond}}};
}

// Seeds whose fixed models reach `fixed` and whose dynamic ones are off by `difference` at equal
// steps and by `at_equal_time` at equal time.
std::vector<SeedResult> Seeds(const std::vector<double>& fixed, double beyond, double difference,
                              double at_equal_time) {
  std::vector<SeedResult> seeds;
  for (const double accuracy : fixed) {
    SeedResult seed;
    seed.seed = seeds.size() + 1;
    seed.fixed_equal_steps = Result(accuracy, beyond);
    seed.dynamic_equal_steps = Result(accuracy + difference, beyond);
    seed.fixed_equal_time = Result(accuracy, beyond);
    seed.dynamic_equal_time = Result(accuracy + at_equal_time, beyond);
    seeds.push_back(seed);
  }
  return seeds;
}

std::string Report(const std::vector<SeedResult>& seeds) {
  return FormatAccuracyReport(seeds, {"own block", "1"});
}

TEST(AccuracyVerdictTest, BothCriteriaAreMetWhereDynamicIsBetter) {
  const std::vector<SeedResult> seeds = Seeds({0.90, 0.92}, 0.85, 0.01, 0.01);
  const AccuracyVerdict verdict = Judge(seeds);
  EXPECT_TRUE(verdict.valid);
  EXPECT_TRUE(verdict.equal_steps_met);
  EXPECT_TRUE(verdict.equal_time_met);
  EXPECT_NEAR(verdict.difference_equal_steps.mean, 0.01, 1e-12);
  EXPECT_NEAR(verdict.difference_equal_steps.error, 0, 1e-12);
  EXPECT_THAT(Report(seeds), Not(HasSubstr("VOID")));
  EXPECT_THAT(Report(seeds), Not(HasSubstr("NOT MET")));
}

TEST(AccuracyVerdictTest, ItIsVoidWhereFixedBudgetsDoNotLearnTheTask) {
  EXPECT_FALSE(Judge(Seeds({0.78, 0.80}, 0.85, 0.1, 0.1)).valid);
  EXPECT_THAT(Report(Seeds({0.78, 0.80}, 0.85, 0.1, 0.1)), HasSubstr("VOID"));
}

TEST(AccuracyVerdictTest, ItIsVoidWhereFixedBudgetsOnlyKnowTheirOwnBlock) {
  const std::vector<SeedResult> seeds = Seeds({0.9, 0.9}, 0.79, 0.1, 0.1);
  EXPECT_FALSE(Judge(seeds).valid);
  EXPECT_THAT(Report(seeds), HasSubstr("VOID"));
  EXPECT_THAT(Report(seeds), Not(HasSubstr("MET")));
}

TEST(AccuracyVerdictTest, AtEqualStepsTwoStandardErrorsAreAllowed) {
  // Standard error of 0.90 and 0.92: 0.01.
  EXPECT_TRUE(Judge(Seeds({0.90, 0.92}, 0.85, -0.019, 0)).equal_steps_met);
  EXPECT_FALSE(Judge(Seeds({0.90, 0.92}, 0.85, -0.021, 0)).equal_steps_met);
}

TEST(AccuracyVerdictTest, AtEqualTimeNothingIsAllowed) {
  EXPECT_TRUE(Judge(Seeds({0.90, 0.92}, 0.85, 0, 0)).equal_time_met);
  const std::vector<SeedResult> worse = Seeds({0.90, 0.92}, 0.85, 0, -0.001);
  EXPECT_FALSE(Judge(worse).equal_time_met);
  EXPECT_THAT(Report(worse), HasSubstr("NOT MET"));
}

TEST(AccuracyVerdictTest, TheReportHasARowASeedAndTheMeans) {
  const std::string report = Report(Seeds({0.90, 0.92}, 0.85, 0.01, 0.01));
  EXPECT_THAT(report, HasSubstr("own block"));
  EXPECT_THAT(report, HasSubstr("90.00"));
  EXPECT_THAT(report, HasSubstr("93.00"));
  EXPECT_THAT(report, HasSubstr("mean  dynamic"));
}

TEST(EstimateTest, TheErrorIsThatOfTheMean) {
  EXPECT_EQ(EstimateOf({}).mean, 0);
  EXPECT_EQ(EstimateOf({3}).error, 0);
  const Estimate estimate = EstimateOf({1, 2, 3});
  EXPECT_DOUBLE_EQ(estimate.mean, 2);
  EXPECT_NEAR(estimate.error, 1 / std::sqrt(3.0), 1e-12);
}

}  // namespace
}  // namespace sparsebalance::eval
