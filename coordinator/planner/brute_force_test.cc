// Plans of tiny jobs against the best of all plans there are: every way to give sequences to ranks,
// to put a rank's sequences into micro-batches, to order those, and to set budgets.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/schedule.h"
#include "coordinator/planner/solution.h"
#include "coordinator/planner/test_jobs.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

class AllPlans {
 public:
  explicit AllPlans(const Problem& problem)
      : problem_(problem), budgets_(problem.num_sequences()) {}

  // Least step time of all plans that keep the floor.
  int64_t Best() {
    const int n = problem_.num_sequences();
    for (int i = 0; i < n; ++i) budgets_[i] = problem_.sequence(i).low;
    while (true) {
      if (CoverageSum(problem_, budgets_) >= problem_.floor_sum()) TryRanks();
      int i = 0;
      while (i < n && ++budgets_[i] > problem_.sequence(i).high) {
        budgets_[i] = problem_.sequence(i).low;
        ++i;
      }
      if (i == n) return best_;
    }
  }

 private:
  // Two ranks: one has the sequences of the set, the other the rest.
  void TryRanks() {
    const uint32_t all = (uint32_t{1} << problem_.num_sequences()) - 1;
    for (uint32_t set = 0; set <= all; ++set) {
      best_ = std::min(best_, std::max(BestOfRank(0, set), BestOfRank(1, all & ~set)));
    }
  }

  int64_t BestOfRank(int rank, uint32_t set) {
    if (set == 0) return 0;
    uint64_t key = static_cast<uint64_t>(rank);
    for (int i = 0; i < problem_.num_sequences(); ++i) {
      key = key * 64 + (Has(set, i) ? static_cast<uint64_t>(budgets_[i]) : 0);
    }
    const auto [known, fresh] = known_.try_emplace(key, INT64_MAX);
    if (fresh) {
      order_.clear();
      Extend(rank, set);
      known->second = best_of_rank_;
      best_of_rank_ = INT64_MAX;
    }
    return known->second;
  }

  static bool Has(uint32_t set, int i) { return (set >> i & 1) != 0; }

  // Appends every possible next micro-batch of what is left.
  void Extend(int rank, uint32_t left) {
    if (left == 0) {
      best_of_rank_ = std::min(best_of_rank_, Span());
      return;
    }
    for (uint32_t part = left; part != 0; part = (part - 1) & left) {
      int64_t tokens = 0;
      int64_t ns = problem_.predictor().constant_ns();
      for (int i = 0; i < problem_.num_sequences(); ++i) {
        if (!Has(part, i)) continue;
        tokens += problem_.padded_tokens(i);
        ns += problem_.TimeNs(i, budgets_[i]);
      }
      if (tokens > problem_.rank(rank).cap_tokens) continue;
      order_.push_back(problem_.OnRank(rank, ns));
      Extend(rank, left & ~part);
      order_.pop_back();
    }
  }

  // By the general event simulation, not the planner's own fast one.
  int64_t Span() const {
    ScheduleTimes times;
    times.forward.resize(problem_.stages());
    times.backward.resize(problem_.stages());
    for (int s = 0; s < problem_.stages(); ++s) {
      for (const int64_t ns : order_) {
        const int64_t forward = MulFixed(ns, problem_.predictor().forward_fraction());
        times.forward[s].push_back(forward);
        times.backward[s].push_back(ns - forward);
      }
    }
    return SimulateSchedule(times).span;
  }

  const Problem& problem_;
  std::vector<int32_t> budgets_;
  std::vector<int64_t> order_;
  std::map<uint64_t, int64_t> known_;
  int64_t best_of_rank_ = INT64_MAX;
  int64_t best_ = INT64_MAX;
};

v1::PlanRequest TinyRequest(uint64_t seed, uint32_t stages, int sequences) {
  std::mt19937_64 random(seed * 977 + stages);
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  v1::PlanRequest request = LinearRequest(2, {});
  v1::PlanSettings& s = *request.mutable_settings();
  s.set_policy("sparsebalance");
  s.set_pipeline_parallel_size(stages);
  s.set_base_budget_blocks(2);
  s.set_coverage_guard(0.4);
  s.set_max_tokens_per_micro_batch(seed % 3 == 0 ? 500 : 2000);
  v1::LatencyModel& m = *request.mutable_latency();
  m.set_constant_ms(0.3 * unit());
  m.set_per_token_ms(0.002 * unit());
  m.set_per_pair_ms(1e-4 * (0.2 + unit()));
  m.set_forward_fraction(0.33);
  for (int i = 0; i < sequences; ++i) {
    v1::Sequence& q = *request.add_sequences();
    q.set_id(static_cast<uint64_t>(i) + 1);
    q.set_tokens(50 + random() % 450);  // one to five blocks
    const auto blocks = static_cast<uint32_t>(BlocksOf(q.tokens(), s.block_tokens()));
    *q.mutable_coverage() = DensePowerCurve(blocks, 0.4 + 1.2 * unit());
  }
  if (seed % 2 == 0) {
    v1::RankFactor& slow = *request.add_rank_factors();
    slow.set_rank(1);
    slow.set_time_factor(1.3);
  }
  return request;
}

struct Pipeline {
  uint32_t stages;
  int sequences;
  uint64_t seeds;
};

class BruteForce : public testing::TestWithParam<Pipeline> {};

TEST_P(BruteForce, PlansAreWithinTwoPercentOfTheBestOnAverageAndNeverBeatIt) {
  double sum = 0;
  double worst = 0;
  for (uint64_t seed = 1; seed <= GetParam().seeds; ++seed) {
    const v1::PlanRequest request = TinyRequest(seed, GetParam().stages, GetParam().sequences);
    const absl::StatusOr<Problem> problem = Problem::Create(request);
    ASSERT_TRUE(problem.ok()) << problem.status();
    const absl::StatusOr<v1::Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const double best = MsFromNs(AllPlans(*problem).Best());
    EXPECT_GE(plan->predicted_step_ms(), best - 1e-5) << "seed " << seed;
    EXPECT_LE(plan->lower_bound_ms(), best + 1e-5) << "seed " << seed;
    sum += plan->predicted_step_ms() / best;
    worst = std::max(worst, plan->predicted_step_ms() / best);
  }
  const double mean = sum / static_cast<double>(GetParam().seeds);
  RecordProperty("mean", absl::StrCat(mean));
  RecordProperty("worst", absl::StrCat(worst));
  EXPECT_LE(mean, 1.02);
}

INSTANTIATE_TEST_SUITE_P(Pipelines, BruteForce,
                         testing::Values(Pipeline{1, 6, 8}, Pipeline{2, 5, 16}, Pipeline{3, 5, 16},
                                         Pipeline{4, 5, 16}, Pipeline{2, 6, 4}, Pipeline{4, 6, 4},
                                         Pipeline{1, 7, 1}),
                         [](const testing::TestParamInfo<Pipeline>& param) {
                           return absl::StrCat(param.param.stages, "Stages", param.param.sequences,
                                               "Sequences");
                         });

}  // namespace
}  // namespace sparsebalance::planner
