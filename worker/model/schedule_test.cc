#include "worker/model/schedule.h"

#include "gtest/gtest.h"

namespace sparsebalance::model {
namespace {

constexpr LearningRateSchedule kSchedule{
    .peak = 1.0, .minimum = 0.2, .warmup_steps = 4, .total_steps = 14};

TEST(ScheduleTest, WarmsUpLinearlyAndNeverStartsAtZero) {
  EXPECT_DOUBLE_EQ(LearningRate(kSchedule, 0), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(kSchedule, 3), 1.0);
}

TEST(ScheduleTest, FallsByACosineToTheMinimum) {
  EXPECT_DOUBLE_EQ(LearningRate(kSchedule, 4), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(kSchedule, 9), 0.6);
  EXPECT_DOUBLE_EQ(LearningRate(kSchedule, 14), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(kSchedule, 1000), 0.2);
}

TEST(ScheduleTest, AllStepsMayBeWarmUp) {
  const LearningRateSchedule s{.peak = 1.0, .minimum = 0.5, .warmup_steps = 2, .total_steps = 2};
  EXPECT_TRUE(s.Validate().ok());
  EXPECT_DOUBLE_EQ(LearningRate(s, 1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(s, 2), 0.5);
}

TEST(ScheduleTest, BadValuesAreRefused) {
  EXPECT_TRUE(kSchedule.Validate().ok());
  EXPECT_FALSE((LearningRateSchedule{.peak = 1, .minimum = 2}).Validate().ok());
  EXPECT_FALSE((LearningRateSchedule{.peak = 1, .minimum = -1}).Validate().ok());
  EXPECT_FALSE((LearningRateSchedule{.warmup_steps = 5, .total_steps = 4}).Validate().ok());
  EXPECT_FALSE((LearningRateSchedule{.warmup_steps = -1, .total_steps = 4}).Validate().ok());
  EXPECT_FALSE((LearningRateSchedule{.total_steps = 0}).Validate().ok());
}

}  // namespace
}  // namespace sparsebalance::model
