#include "coordinator/planner/plan_builder.h"

#include <algorithm>
#include <vector>

#include "coordinator/planner/envelope.h"
#include "coordinator/planner/lower_bound.h"

namespace sparsebalance::planner {
namespace {

// max / mean, 1 where there is nothing to compare.
struct Imbalance {
  int64_t most = 0;
  int64_t sum = 0;
  int64_t count = 0;

  void Add(int64_t ns) {
    most = std::max(most, ns);
    sum += ns;
    ++count;
  }
  double Ratio() const {
    if (sum == 0) return 1.0;
    return static_cast<double>(most) * static_cast<double>(count) / static_cast<double>(sum);
  }
};

void FillCoverage(const Problem& problem, const Solution& solution, int64_t coverage_sum,
                  v1::Plan& plan) {
  const int n = problem.num_sequences();
  Int128 weighted = 0;
  int64_t tokens = 0;
  uint64_t supervised = 0;
  double least_ratio = 1.0;
  for (int i = 0; i < n; ++i) {
    const ProblemSequence& s = problem.sequence(i);
    const int64_t coverage = problem.Coverage(i, solution.budgets[i]);
    weighted += Int128{coverage} * s.tokens;
    tokens += s.tokens;
    supervised += static_cast<uint64_t>(s.supervised_tokens);
    const int64_t base = s.base_coverage;
    // A sequence whose base covers nothing cannot lose any.
    const double ratio =
        base == 0 ? 1.0 : static_cast<double>(coverage) / static_cast<double>(base);
    least_ratio = i == 0 ? ratio : std::min(least_ratio, ratio);
  }
  const double full = static_cast<double>(kFullCoverage);
  plan.set_mean_coverage(n == 0 ? 1.0 : static_cast<double>(coverage_sum) / n / full);
  plan.set_baseline_mean_coverage(
      n == 0 ? 1.0 : static_cast<double>(problem.base_coverage_sum()) / n / full);
  const auto weighted_mean = static_cast<int64_t>(tokens == 0 ? kFullCoverage : weighted / tokens);
  plan.set_token_weighted_mean_coverage(static_cast<double>(weighted_mean) / full);
  plan.set_min_coverage_ratio(least_ratio);
  plan.set_global_supervised_tokens(supervised);
}

}  // namespace

void BuildPlan(const Problem& problem, const Solution& solution, v1::Plan& plan) {
  Evaluator evaluator(problem);
  evaluator.SetBudgets(solution.budgets);
  Imbalance ranks;
  Imbalance micro_batches;
  int64_t step_ns = 0;
  Int128 busy = 0;
  Int128 total = 0;
  uint64_t extrapolated = 0;
  MicroBatchItems sorted;
  for (int r = 0; r < problem.num_ranks(); ++r) {
    v1::RankPlan& rank = *plan.add_ranks();
    rank.set_rank(static_cast<uint32_t>(r));
    for (const MicroBatchItems& items : solution.batching[r]) {
      v1::MicroBatch& mb = *rank.add_micro_batches();
      mb.set_zero_weight(items.empty());
      sorted.assign(items.begin(), items.end());
      std::sort(sorted.begin(), sorted.end());
      mb.mutable_slices()->Reserve(static_cast<int>(sorted.size()));
      // A large batch is in no cache, and a micro-batch holds sequences from all over it.
      for (const int32_t i : sorted) __builtin_prefetch(&problem.sequence(i));
      for (const int32_t i : sorted) {
        const ProblemSequence& s = problem.sequence(i);
        v1::Slice& slice = *mb.add_slices();
        slice.set_sequence_id(s.id);
        slice.set_token_end(static_cast<uint64_t>(s.tokens));
        slice.set_budget_blocks(static_cast<uint32_t>(solution.budgets[i]));
        if (const LayerBudgets* layers = problem.Layers(i); layers != nullptr) {
          const std::vector<uint32_t> dealt = layers->At(solution.budgets[i]);
          const bool uniform = std::all_of(dealt.begin(), dealt.end(),
                                           [&](uint32_t k) { return k == slice.budget_blocks(); });
          if (!uniform) slice.mutable_layer_budget_blocks()->Add(dealt.begin(), dealt.end());
        }
        const auto attended = static_cast<uint32_t>(std::min(solution.budgets[i], s.blocks));
        extrapolated +=
            problem.predictor().IsExtrapolation(static_cast<uint64_t>(s.tokens), attended) ? 1 : 0;
      }
      const int64_t ns = evaluator.MicroBatchNs(r, items);
      mb.set_predicted_ms(MsFromNs(ns));
      if (!items.empty()) micro_batches.Add(ns);
      busy += Int128{ns} * problem.stages();
    }
    const int64_t rank_ns = evaluator.RankNs(r, solution.batching[r]);
    rank.set_predicted_ms(MsFromNs(rank_ns));
    ranks.Add(rank_ns);
    step_ns = std::max(step_ns, rank_ns);
  }
  // Every rank's stages are held until the slowest rank is done.
  total = Int128{step_ns} * problem.stages() * problem.num_ranks();
  const int64_t constant = problem.predictor().step_constant_ns();
  const int64_t coverage_sum = CoverageSum(problem, solution.budgets);
  // A policy that knows no floor is held against plans that cover no more than it does.
  const int64_t floor_sum = std::min(problem.floor_sum(), coverage_sum);
  const int64_t bound =
      LowerBoundNs(problem, Envelopes(problem, Envelopes::Kind::kBound), floor_sum);
  plan.set_predicted_step_ms(MsFromNs(step_ns + constant));
  plan.set_lower_bound_ms(MsFromNs(bound + constant));
  FillCoverage(problem, solution, coverage_sum, plan);
  plan.set_rank_imbalance(ranks.Ratio());
  plan.set_micro_batch_imbalance(micro_batches.Ratio());
  plan.set_fallback(solution.fallback);
  plan.set_fallback_detail(solution.fallback_detail);
  plan.set_extrapolated_sequences(extrapolated);
  // Without exchanges: what earlier plans have deferred.
  plan.set_max_displacement_steps(problem.max_deferred_steps());
  plan.set_bubble_fraction(
      total == 0 ? 0.0 : static_cast<double>(total - busy) / static_cast<double>(total));
}

}  // namespace sparsebalance::planner
