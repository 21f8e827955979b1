#include "coordinator/cli/table.h"
#include "coordinator/cli/views.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TableTest, ColumnsAreAlignedAndLinesEndWithoutSpaces) {
  Table table({{"JOB"}, {"STEP MS", Align::kRight}, {"NODE"}});
  table.AddRow({"default/übung", "12.5", "a"});
  table.AddRow({"b", "1234567.5", ""});
  EXPECT_EQ(table.ToString(),
            "JOB              STEP MS  NODE\n"
            "default/übung       12.5  a\n"
            "b              1234567.5  -\n");
}

TEST(ViewsTest, NoJobsIsSaidInWords) { EXPECT_EQ(JobsView({}), "no jobs\n"); }

TEST(ViewsTest, AJobShowsWhomItWaitsForAndItsLatestSteps) {
  v1::JobStatus job;
  job.mutable_spec()->mutable_job()->set_name("big");
  job.mutable_spec()->mutable_parallelism()->set_data(4);
  job.set_state(v1::JOB_STATE_JOINING);
  job.add_missing_ranks(2);
  job.add_missing_ranks(3);
  for (uint64_t step = 0; step < 12; ++step) {
    v1::StepStatus* status = job.add_recent_steps();
    status->set_step(1000 + step);
    status->set_policy(step == 11 ? "length" : "sparsebalance");
    status->set_used_fallback(step == 11);
    if (step == 11) status->set_no_plan_reason(v1::NO_PLAN_REASON_LATE);
  }
  const std::string view = JobView(job);
  EXPECT_THAT(view, HasSubstr("default/big"));
  EXPECT_THAT(view, HasSubstr("ranks 2-3"));
  EXPECT_THAT(view, HasSubstr("length (fallback: late)"));
  EXPECT_THAT(view, HasSubstr("1002"));
  EXPECT_THAT(view, Not(HasSubstr("1001")));  // only the latest ten
}

TEST(ViewsTest, SlowRanksOfAJobAreNamed) {
  v1::JobStatus job;
  for (uint32_t r = 0; r < 3; ++r) {
    v1::RankStatus* rank = job.add_ranks();
    rank->set_rank(r);
    rank->set_node_id(std::string("node-").append(std::to_string(r)));
    rank->set_time_factor(r == 1 ? 1.312 : 1.049);
  }
  const std::string view = JobView(job);
  EXPECT_THAT(view, HasSubstr("slow 1.312"));
  EXPECT_THAT(view, Not(HasSubstr("slow 1.049")));
}

TEST(ViewsTest, APlanShowsEveryMicroBatch) {
  v1::GetPlanResponse response;
  response.set_generation(3);
  v1::Plan* plan = response.mutable_plan();
  plan->set_step(7);
  plan->set_policy("paper");
  plan->set_fallback(v1::FALLBACK_REASON_FLOOR_UNREACHABLE);
  plan->set_fallback_detail("the floor cannot be reached");
  v1::RankPlan* rank = plan->add_ranks();
  v1::MicroBatch* micro = rank->add_micro_batches();
  for (const uint32_t budget : {3u, 9u}) {
    v1::Slice* slice = micro->add_slices();
    slice->set_token_end(500);
    slice->set_budget_blocks(budget);
  }
  rank->add_micro_batches()->set_zero_weight(true);
  response.add_explanation("Because of this.");
  v1::JobKey job;
  job.set_name("big");
  const std::string view = PlanView(job, response);
  EXPECT_THAT(view, HasSubstr("step 7, generation 3"));
  EXPECT_THAT(view, HasSubstr("3-9"));
  EXPECT_THAT(view, HasSubstr("1000"));
  EXPECT_THAT(view, HasSubstr("filler"));
  EXPECT_THAT(view, HasSubstr("the floor cannot be reached"));
  EXPECT_THAT(view, HasSubstr("Because of this.\n"));
}

}  // namespace
}  // namespace sparsebalance
