#include "worker/client/plan_agreement.h"

#include <functional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/local_communicator.h"

namespace sparsebalance {
namespace {

using ::testing::HasSubstr;

// Runs AgreeOnPlan on `votes.size()` ranks, each in a thread of its own.
std::vector<absl::StatusOr<PlanAgreement>> AgreeAll(const std::vector<PlanVote>& votes) {
  auto group = CreateLocalGroup(static_cast<int>(votes.size())).value();
  std::vector<absl::StatusOr<PlanAgreement>> results(votes.size(), PlanAgreement{});
  std::vector<std::thread> threads;
  for (size_t r = 0; r < votes.size(); ++r) {
    threads.emplace_back([&, r] { results[r] = AgreeOnPlan(*group[r], votes[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

PlanVote GoodVote() {
  return {.step = 7,
          .has_plan = true,
          .leader_epoch = 3,
          .generation = 2,
          .plan_digest = 0x8000000000000001u,
          .fallback_digest = 0xffffffffffffffffu};
}

TEST(PlanAgreementTest, EqualPlansOnAllRanksAreUsed) {
  for (const auto& result : AgreeAll({GoodVote(), GoodVote(), GoodVote()})) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->use_plan);
    EXPECT_FALSE(result->stop);
    EXPECT_EQ(result->reason, "");
  }
}

TEST(PlanAgreementTest, OneRankWithoutAPlanSendsAllToTheFallback) {
  PlanVote none = GoodVote();
  none.has_plan = false;
  for (const auto& result : AgreeAll({GoodVote(), none, GoodVote()})) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->use_plan);
    EXPECT_EQ(result->reason, "some ranks have no plan");
  }
}

TEST(PlanAgreementTest, AnyDifferenceInThePlanSendsAllToTheFallback) {
  const std::vector<std::function<void(PlanVote&)>> changes = {
      [](PlanVote& v) { v.leader_epoch = 4; },
      [](PlanVote& v) { v.generation = 3; },
      [](PlanVote& v) { v.plan_digest = 1; },
      [](PlanVote& v) { v.plan_digest ^= uint64_t{1} << 63; },
  };
  for (const auto& change : changes) {
    PlanVote other = GoodVote();
    change(other);
    for (const auto& result : AgreeAll({GoodVote(), other})) {
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_FALSE(result->use_plan);
      EXPECT_THAT(result->reason, HasSubstr("different"));
    }
  }
}

TEST(PlanAgreementTest, DifferentFallbacksStopTheJobAndNameTheRanks) {
  PlanVote odd = GoodVote();
  odd.fallback_digest = 0xabc;
  for (const auto& result : AgreeAll({GoodVote(), GoodVote(), odd})) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(result.status().message(), HasSubstr("ranks 0, 1: ffffffffffffffff"));
    EXPECT_THAT(result.status().message(), HasSubstr("rank 2: 0000000000000abc"));
  }
}

TEST(PlanAgreementTest, RanksAtDifferentStepsStop) {
  PlanVote late = GoodVote();
  late.step = 6;
  for (const auto& result : AgreeAll({GoodVote(), late})) {
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message(), HasSubstr("not at the same step"));
  }
}

TEST(PlanAgreementTest, OneRankThatWantsToStopStopsAll) {
  PlanVote leaving = GoodVote();
  leaving.stop_requested = true;
  for (const auto& result : AgreeAll({GoodVote(), leaving})) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->stop);
  }
}

TEST(PlanAgreementTest, ALostPeerIsAnErrorAndNotAHang) {
  auto group = CreateLocalGroup(2).value();
  std::thread peer([&] { group[1]->Abort(); });
  absl::StatusOr<PlanAgreement> result = AgreeOnPlan(*group[0], GoodVote());
  peer.join();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sparsebalance
