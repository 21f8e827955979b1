#include "coordinator/service/job_knowledge.h"

#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/service_test_util.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing_support::MakeBatch;
using testing_support::MakeSpec;

// What a rank reports of sequences whose first layer bears little sparsity and whose second bears
// much.
v1::RankTelemetry Measured(const v1::GlobalBatch& batch, const v1::JobSpec& spec) {
  v1::RankTelemetry report;
  v1::MicroBatchTelemetry& micro = *report.add_micro_batches();
  micro.set_forward_ms(10);
  micro.set_backward_ms(20);
  for (const v1::BatchSequence& given : batch.sequences()) {
    v1::SequenceTelemetry& sequence = *micro.add_sequences();
    sequence.set_sequence_id(given.id());
    sequence.set_tokens(given.tokens());
    sequence.set_planned_budget_blocks(8);
    const auto blocks =
        static_cast<uint32_t>(planner::BlocksOf(given.tokens(), spec.plan().block_tokens()));
    *sequence.mutable_coverage() = planner::PowerCurve(blocks, 1.0);
    *sequence.add_layer_coverage() = planner::PowerCurve(blocks, 0.2);
    *sequence.add_layer_coverage() = planner::PowerCurve(blocks, 2.5);
  }
  return report;
}

v1::GlobalBatch LongBatch() {
  v1::GlobalBatch batch = MakeBatch(0);
  for (v1::BatchSequence& sequence : *batch.mutable_sequences()) {
    sequence.set_tokens(sequence.tokens() + 2000);
  }
  return batch;
}

TEST(JobKnowledgeTest, CurvesByLayerBecomeBudgetsByLayer) {
  v1::JobSpec spec = MakeSpec("layers");
  spec.mutable_plan()->set_layer_budgets(true);
  JobKnowledge knowledge(spec, {});
  const v1::GlobalBatch batch = LongBatch();
  v1::PlanRequest before;
  knowledge.FillRequest(batch, before);
  // Nothing was measured: one budget holds in all layers.
  for (const v1::Sequence& sequence : before.sequences()) {
    EXPECT_EQ(sequence.layer_coverage_size(), 0);
  }

  const v1::RankTelemetry report = Measured(batch, spec);
  const std::vector<const v1::RankTelemetry*> reports = {&report};
  knowledge.Observe(reports);
  v1::PlanRequest after;
  knowledge.FillRequest(batch, after);
  for (const v1::Sequence& sequence : after.sequences()) {
    ASSERT_EQ(sequence.layer_coverage_size(), 2);
    EXPECT_LT(sequence.layer_coverage(0).coverage(1), sequence.layer_coverage(1).coverage(1));
  }
  const auto plan = planner::MakePlan(after);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int dealt = 0;
  for (const v1::RankPlan& rank : plan->ranks()) {
    for (const v1::MicroBatch& mb : rank.micro_batches()) {
      for (const v1::Slice& slice : mb.slices()) {
        if (slice.layer_budget_blocks_size() == 0) continue;
        ++dealt;
        EXPECT_GE(slice.layer_budget_blocks(0), slice.layer_budget_blocks(1));
      }
    }
  }
  EXPECT_GT(dealt, 0);
}

TEST(JobKnowledgeTest, AJobWithoutBudgetsByLayerKeepsNoCurvesByLayer) {
  const v1::JobSpec spec = MakeSpec("plain");
  JobKnowledge knowledge(spec, {});
  const v1::GlobalBatch batch = LongBatch();
  const v1::RankTelemetry report = Measured(batch, spec);
  const std::vector<const v1::RankTelemetry*> reports = {&report};
  knowledge.Observe(reports);
  v1::PlanRequest request;
  knowledge.FillRequest(batch, request);
  for (const v1::Sequence& sequence : request.sequences()) {
    EXPECT_EQ(sequence.layer_coverage_size(), 0);
    EXPECT_GT(sequence.coverage().budget_blocks_size(), 0);
  }
}

}  // namespace
}  // namespace sparsebalance
