// What is said about a run: figures of a step, summaries, and the check of a plan against its
// batch.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/train/batch_source.h"
#include "worker/train/run_report.h"
#include "worker/train/step_record.h"
#include "worker/train/train_test_util.h"

namespace sparsebalance {
namespace {

using ::testing::HasSubstr;

StepRecord Record(uint64_t step, double compute_0, double compute_1, double predicted) {
  StepRecord record;
  record.step = step;
  record.predicted_step_ms = predicted;
  const double slowest = std::max(compute_0, compute_1);
  for (const double compute : {compute_0, compute_1}) {
    RankStepStats rank;
    rank.step_ms = slowest + 10;
    rank.compute_ms = compute;
    rank.idle_ms = slowest - compute;
    rank.loss_sum = 30;
    rank.supervised_tokens = 10;
    rank.tokens = 50;
    rank.sequences = 2;
    rank.coverage_sum = 1.5;
    record.ranks.push_back(rank);
  }
  return record;
}

TEST(StepRecordTest, FiguresOfAStepAreTakenOverRanks) {
  const StepRecord record = Record(0, 90, 60, 0);
  EXPECT_DOUBLE_EQ(record.step_ms(), 100);
  EXPECT_DOUBLE_EQ(record.rank_imbalance(), 90 / 75.0);
  EXPECT_DOUBLE_EQ(record.idle_fraction(), 30 / 200.0);
  EXPECT_DOUBLE_EQ(record.mean_coverage(), 0.75);
  EXPECT_DOUBLE_EQ(record.loss(), 3);
  EXPECT_DOUBLE_EQ(record.tokens(), 100);
}

TEST(StepRecordTest, AStepInWhichNothingWasComputedIsBalanced) {
  EXPECT_DOUBLE_EQ(Record(0, 0, 0, 0).rank_imbalance(), 1);
  EXPECT_DOUBLE_EQ(StepRecord().mean_coverage(), 1);
}

TEST(StepRecordTest, TheMfuIsAttendedFlopsOverWhatAllDevicesCouldDo) {
  StepRecord record = Record(0, 90, 60, 0);
  record.ranks[0].attended_flops = 4e9;
  record.ranks[1].attended_flops = 2e9;
  record.ranks[0].peak_flops = 50e9;
  EXPECT_EQ(record.mfu(), std::nullopt) << "the other device is not known";
  record.ranks[1].peak_flops = 70e9;
  ASSERT_TRUE(record.mfu().has_value());
  EXPECT_DOUBLE_EQ(*record.mfu(), 6e9 / (120e9 * 0.1));
}

TEST(StepRecordTest, AFallbacksReasonIsTheFirstOfItsRanks) {
  StepRecord record = Record(0, 90, 60, 0);
  record.ranks[0].no_plan_reason = v1::NO_PLAN_REASON_RANKS_DIFFER;
  record.ranks[1].no_plan_reason = v1::NO_PLAN_REASON_LATE;
  EXPECT_EQ(record.no_plan_reason(), v1::NO_PLAN_REASON_NONE) << "it was no fallback";
  record.used_fallback = true;
  EXPECT_EQ(record.no_plan_reason(), v1::NO_PLAN_REASON_LATE);
  const std::string line = FormatStepJson("sparsebalance", record);
  EXPECT_THAT(line, HasSubstr(R"("no_plan_reason":"late")"));
}

TEST(RunReportTest, PoliciesAreComparedWithTheFirst) {
  RunReport report;
  report.AddPolicy("none");
  report.AddPolicy("sparsebalance");
  report.Add("none", Record(0, 190, 100, 220));  // step of 200 ms, predicted 10 % above
  report.Add("none", Record(1, 90, 100, 99));    // step of 110 ms, predicted 10 % below
  report.Add("sparsebalance", Record(0, 90, 90, 100));
  const std::vector<PolicySummary> summaries = report.Summaries();
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_EQ(summaries[0].policy, "none");
  EXPECT_DOUBLE_EQ(summaries[0].step_ms_mean, 155);
  EXPECT_DOUBLE_EQ(summaries[0].step_ms_p50, 155);
  EXPECT_NEAR(summaries[0].prediction_error_mean, 0, 1e-12);
  EXPECT_DOUBLE_EQ(summaries[1].speedup, 1.55);
  EXPECT_EQ(summaries[1].sequences_trained, 4u);

  const nlohmann::json json = nlohmann::json::parse(FormatJson(summaries));
  EXPECT_EQ(json.at("policies")[1].at("policy"), "sparsebalance");
  EXPECT_DOUBLE_EQ(json.at("policies")[1].at("speedup"), 1.55);
  EXPECT_THAT(FormatTable(summaries), HasSubstr("1.55x"));
}

TEST(RunReportTest, APolicyWithoutAStepHasNoFigures) {
  RunReport report;
  report.AddPolicy("none");
  EXPECT_EQ(report.Summaries()[0].steps, 0u);
  EXPECT_TRUE(nlohmann::json::accept(FormatJson(report.Summaries())));
}

class CheckPlanForRankTest : public ::testing::Test {
 protected:
  CheckPlanForRankTest() {
    for (uint64_t id = 0; id < 4; ++id) {
      v1::BatchSequence& sequence = *batch_.add_sequences();
      sequence.set_id(id);
      sequence.set_tokens(10 + id);
      sequence.set_supervised_tokens(9 + id);
    }
    v1::PlanSettings settings;
    settings.set_policy("length");
    settings.set_data_parallel_size(2);
    settings.set_block_tokens(8);
    settings.set_base_budget_blocks(2);
    settings.set_max_tokens_per_micro_batch(64);
    plan_ = *planner::MakePlan(FallbackRequest(settings, batch_));
  }
  std::string Problem() { return std::string(CheckPlanForRank(plan_, 0, batch_, 1).message()); }
  v1::Slice& slice() {
    return *plan_.mutable_ranks(0)->mutable_micro_batches(0)->mutable_slices(0);
  }

  v1::GlobalBatch batch_;
  v1::Plan plan_;
};

TEST_F(CheckPlanForRankTest, APlanOfTheBatchIsGood) {
  EXPECT_TRUE(CheckPlanForRank(plan_, 0, batch_, 1).ok());
  EXPECT_TRUE(CheckPlanForRank(plan_, 1, batch_, 1).ok());
}

TEST_F(CheckPlanForRankTest, EveryWayOfNotFittingIsNamed) {
  const v1::Plan good = plan_;
  slice().set_sequence_id(77);
  EXPECT_THAT(Problem(), HasSubstr("sequence 77 is not in the batch"));
  plan_ = good;
  slice().set_token_end(5);
  EXPECT_THAT(Problem(), HasSubstr("the plan takes 0 to 5"));
  plan_ = good;
  slice().set_budget_blocks(0);
  EXPECT_THAT(Problem(), HasSubstr("budget of 0 blocks"));
  plan_ = good;
  plan_.set_global_supervised_tokens(1);
  EXPECT_THAT(Problem(), HasSubstr("divided by 1 tokens"));
  plan_ = good;
  *plan_.mutable_ranks(0)->add_micro_batches() = plan_.ranks(0).micro_batches(0);
  EXPECT_THAT(Problem(), HasSubstr("stands twice"));
  plan_ = good;
  plan_.mutable_ranks()->RemoveLast();
  plan_.mutable_ranks(0)->set_rank(1);
  EXPECT_THAT(Problem(), HasSubstr("no entry for rank 0"));
}

}  // namespace
}  // namespace sparsebalance
