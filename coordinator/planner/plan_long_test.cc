// Ten thousand random jobs of every odd kind.

#include "coordinator/planner/plan_expectations.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/test_jobs.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

TEST(TenThousandPlans, KeepCapsGuardAndCounts) {
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    v1::PlanRequest request = RandomRequest(1'000'000 + seed);
    request.mutable_settings()->set_policy("sparsebalance");
    if (request.sequences_size() > 0 && seed % 10 == 0) {
      // All alike.
      for (v1::Sequence& q : *request.mutable_sequences()) {
        q.set_tokens(request.sequences(0).tokens());
        q.set_supervised_tokens(0);
        q.clear_coverage();
      }
    } else if (request.sequences_size() > 0 && seed % 10 == 1) {
      // One giant that fills a micro-batch of its own.
      v1::Sequence& giant = *request.mutable_sequences(0);
      giant.set_tokens(request.settings().max_tokens_per_micro_batch() - 16);
      giant.clear_coverage();
      request.clear_rank_factors();
      request.mutable_settings()->clear_micro_batches_per_rank();
    }
    // Half of them by construction alone.
    if (seed % 2 == 0) request.mutable_settings()->set_search_effort(v1::SEARCH_EFFORT_FAST);
    const absl::StatusOr<v1::Plan> plan = MakePlan(request);
    if (!plan.ok() && seed % 10 == 0) {
      // All as long as the first may not fit into the fixed counts: that is said, and well.
      ASSERT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << plan.status();
      continue;
    }
    ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ExpectHardConstraints(request, *plan);
    ExpectGuard(request, *plan);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace sparsebalance::planner
