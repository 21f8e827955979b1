#include "coordinator/planner/plan_expectations.h"

#include <algorithm>
#include <map>

#include "coordinator/planner/coverage_curve.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {

void ExpectHardConstraints(const v1::PlanRequest& request, const v1::Plan& plan) {
  const v1::PlanSettings& s = request.settings();
  std::map<uint64_t, const v1::Sequence*> sequences;
  for (const v1::Sequence& q : request.sequences()) sequences[q.id()] = &q;
  std::map<uint32_t, double> caps;
  for (const v1::RankFactor& f : request.rank_factors()) {
    if (f.token_factor() > 0) caps[f.rank()] = f.token_factor();
  }
  std::map<uint64_t, int> seen;
  ASSERT_EQ(plan.ranks_size(), static_cast<int>(s.data_parallel_size()));
  const uint64_t padding = std::max<uint32_t>(1, s.padding_multiple());
  for (const v1::RankPlan& rank : plan.ranks()) {
    if (s.micro_batches_per_rank() > 0) {
      EXPECT_EQ(rank.micro_batches_size(), static_cast<int>(s.micro_batches_per_rank()));
    }
    if (s.equal_micro_batch_count()) {
      EXPECT_EQ(rank.micro_batches_size(), plan.ranks(0).micro_batches_size());
    }
    const double factor = caps.contains(rank.rank()) ? caps[rank.rank()] : 1.0;
    for (const v1::MicroBatch& mb : rank.micro_batches()) {
      EXPECT_EQ(mb.zero_weight(), mb.slices().empty());
      uint64_t tokens = 0;
      for (const v1::Slice& slice : mb.slices()) {
        ASSERT_TRUE(sequences.contains(slice.sequence_id()));
        const v1::Sequence& q = *sequences[slice.sequence_id()];
        ++seen[q.id()];
        EXPECT_EQ(slice.token_begin(), 0U);
        EXPECT_EQ(slice.token_end(), q.tokens());
        tokens += (q.tokens() + padding - 1) / padding * padding;
        const auto blocks = static_cast<uint32_t>(BlocksOf(q.tokens(), s.block_tokens()));
        EXPECT_GE(slice.budget_blocks(), std::max<uint32_t>(1, s.min_budget_blocks()));
        if (s.max_budget_blocks() > 0) {
          EXPECT_LE(slice.budget_blocks(), s.max_budget_blocks());
        }
        const double base = CoverageAt(q.coverage(), blocks, s.base_budget_blocks());
        EXPECT_GE(CoverageAt(q.coverage(), blocks, slice.budget_blocks()),
                  (1 - s.coverage_guard()) * base - 1e-8)
            << "sequence " << q.id();
      }
      EXPECT_LE(static_cast<double>(tokens),
                static_cast<double>(s.max_tokens_per_micro_batch()) * factor);
    }
  }
  EXPECT_EQ(seen.size(), sequences.size());
  for (const auto& [id, count] : seen) EXPECT_EQ(count, 1) << "sequence " << id;
}

void ExpectGuard(const v1::PlanRequest& request, const v1::Plan& plan) {
  const v1::PlanSettings& s = request.settings();
  std::map<uint64_t, const v1::Sequence*> sequences;
  for (const v1::Sequence& q : request.sequences()) sequences[q.id()] = &q;
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::MicroBatch& mb : rank.micro_batches()) {
      for (const v1::Slice& slice : mb.slices()) {
        const v1::Sequence& q = *sequences.at(slice.sequence_id());
        const auto blocks = static_cast<uint32_t>(BlocksOf(q.tokens(), s.block_tokens()));
        const auto coverage = [&](uint32_t budget) {
          return CoverageAt(q.coverage(), blocks, std::clamp<uint32_t>(budget, 1, blocks));
        };
        EXPECT_GE(slice.budget_blocks(), std::max<uint32_t>(1, s.min_budget_blocks()));
        if (s.max_budget_blocks() > 0) {
          EXPECT_LE(slice.budget_blocks(), s.max_budget_blocks());
        }
        EXPECT_GE(coverage(slice.budget_blocks()),
                  (1 - s.coverage_guard()) * coverage(s.base_budget_blocks()) - 1e-6)
            << "sequence " << q.id();
      }
    }
  }
}

}  // namespace sparsebalance::planner
