#include "worker/client/incarnation.h"

#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

const absl::Time kNoon = absl::FromUnixSeconds(1'800'000'000);

TEST(IncarnationTest, LaterLivesAreHigher) {
  EXPECT_GT(MakeIncarnation(0, kNoon + absl::Microseconds(1)), MakeIncarnation(0, kNoon));
  EXPECT_GE(MakeIncarnation(0, kNoon), 1u);
}

TEST(IncarnationTest, RestartsOfTheJobCountMoreThanClocks) {
  EXPECT_GT(MakeIncarnation(1, kNoon - absl::Hours(24 * 365)), MakeIncarnation(0, kNoon));
  EXPECT_GT(MakeIncarnation(kMaxRestartAttempt, kNoon),
            MakeIncarnation(kMaxRestartAttempt - 1, kNoon));
}

TEST(IncarnationTest, AProcessWhoseClockIsBehindTakesTheNumberAfterTheOneBefore) {
  const uint64_t before = MakeIncarnation(3, kNoon);
  const uint64_t own = MakeIncarnation(3, kNoon - absl::Seconds(2));
  EXPECT_EQ(IncarnationAfter(own, before), before + 1);
}

TEST(IncarnationTest, AProcessOfAnEarlierRestartTakesNone) {
  EXPECT_EQ(IncarnationAfter(MakeIncarnation(2, kNoon), MakeIncarnation(3, kNoon)), std::nullopt);
}

TEST(IncarnationTest, AHigherOneNeedsNoOther) {
  EXPECT_EQ(IncarnationAfter(MakeIncarnation(2, kNoon), MakeIncarnation(1, kNoon)), std::nullopt);
  EXPECT_EQ(IncarnationAfter(7, 6), std::nullopt);
}

}  // namespace
}  // namespace sparsebalance
