// Batching and budgets, each made for the other.
//
// From several starting batchings: improve the batching under the present budgets, find the best
// budgets for it, and again with those, a few times. The best plan that was seen wins, be it one
// with base budgets; a plan of `length` that is faster by the same model wins over it.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "coordinator/planner/batching_search.h"
#include "coordinator/planner/budgets.h"
#include "coordinator/planner/envelope.h"
#include "coordinator/planner/policies/registry.h"

namespace sparsebalance::planner {
namespace {

// Rounds of batching and budgets from one start, and changes looked at in each.
constexpr int kRounds = 4;
constexpr int64_t kTriesOneStage = 200'000;
constexpr int64_t kTriesPipeline = 20'000;

int64_t Tries(const Problem& problem) {
  return problem.stages() == 1 ? kTriesOneStage : kTriesPipeline;
}

struct Best {
  bool found = false;
  int64_t step_ns = 0;
  int64_t coverage_sum = 0;
  Solution solution;

  // Least time, then most coverage; the earlier of two equals.
  bool Offer(int64_t ns, int64_t coverage, const Batching& batching,
             const std::vector<int32_t>& budgets) {
    if (found && (ns > step_ns || (ns == step_ns && coverage <= coverage_sum))) return false;
    found = true;
    step_ns = ns;
    coverage_sum = coverage;
    solution.batching = batching;
    solution.budgets = budgets;
    return true;
  }
};

void Alternate(const Problem& problem, BudgetOptimizer& optimizer, std::vector<int32_t> budgets,
               Batching batching, Best& best) {
  for (int round = 0; round < kRounds; ++round) {
    if (round > 0) ImproveBatching(problem, budgets, Tries(problem), batching);
    const BudgetResult result = optimizer.Optimize(batching);
    if (!result.reached) return;
    if (!best.Offer(result.step_ns, result.coverage_sum, batching, result.budgets) && round > 1) {
      return;
    }
    if (round > 0) budgets = result.budgets;
  }
}

// Batching only, under base budgets.
void BatchOnly(const Problem& problem, Batching batching, Best& best) {
  Evaluator evaluator(problem);
  const std::vector<int32_t> budgets = problem.BaseBudgets();
  best.Offer(evaluator.StepNs(batching, budgets), problem.base_coverage_sum(), batching, budgets);
  ImproveBatching(problem, budgets, Tries(problem), batching);
  best.Offer(evaluator.StepNs(batching, budgets), problem.base_coverage_sum(), batching, budgets);
}

absl::StatusOr<Solution> FloorUnreachable(const Problem& problem, const Envelopes& envelopes,
                                          const Solution& length, int64_t length_ns) {
  auto built = BuildBatching(problem, problem.BaseBudgets());
  if (!built.ok()) return built.status();
  Best best;
  BatchOnly(problem, *std::move(built), best);
  Solution solution = std::move(best.solution);
  if (length_ns < best.step_ns) solution = length;
  solution.fallback = v1::FALLBACK_REASON_FLOOR_UNREACHABLE;
  const double n = static_cast<double>(problem.num_sequences()) * kFullCoverage;
  solution.fallback_detail = absl::StrFormat(
      "the floor asks for a mean coverage of %.4f but the highest budgets allowed give %.4f; base "
      "budgets are used, raise max_budget_blocks or lower the floor",
      static_cast<double>(problem.floor_sum()) / n,
      static_cast<double>(envelopes.highest_coverage_sum()) / n);
  return solution;
}

}  // namespace

absl::StatusOr<Solution> SolveSparseBalance(const Problem& problem) {
  auto length = SolveLength(problem);
  if (!length.ok()) return length.status();
  if (problem.num_sequences() == 0) return length;
  const int64_t length_ns = Evaluator(problem).StepNs(length->batching, length->budgets);

  const Envelopes envelopes(problem);
  Best best;
  if (envelopes.highest_coverage_sum() < problem.floor_sum()) {
    return FloorUnreachable(problem, envelopes, *length, length_ns);
  }

  BudgetOptimizer optimizer(problem, envelopes);
  const std::vector<int32_t> priced = PricedBudgets(problem, envelopes);
  auto built = BuildBatching(problem, priced);
  if (!built.ok()) return built.status();
  Alternate(problem, optimizer, priced, *std::move(built), best);
  Alternate(problem, optimizer, priced, length->batching, best);
  if (problem.stages() > 1) {
    // Where one sequence decides the step, coverage is plenty and the rest is best batched lean.
    std::vector<int32_t> lowest(problem.num_sequences());
    for (int i = 0; i < problem.num_sequences(); ++i) lowest[i] = problem.sequence(i).low;
    auto lean = BuildBatching(problem, lowest);
    if (!lean.ok()) return lean.status();
    Alternate(problem, optimizer, lowest, *std::move(lean), best);
    const Batching so_far = best.solution.batching;
    if (best.found) Alternate(problem, optimizer, lowest, so_far, best);
  }
  if (problem.floor_sum() <= problem.base_coverage_sum()) {
    auto based = BuildBatching(problem, problem.BaseBudgets());
    if (!based.ok()) return based.status();
    BatchOnly(problem, *std::move(based), best);
  }

  const bool may_be_slower = problem.floor_sum() > problem.base_coverage_sum();
  if (!best.found || (!may_be_slower && length_ns < best.step_ns)) {
    length->fallback = v1::FALLBACK_REASON_LENGTH_BETTER;
    length->fallback_detail = absl::StrFormat(
        "the plan of `length` takes %.3f ms by the same model, the best plan found %.3f ms",
        MsFromNs(length_ns), MsFromNs(best.step_ns));
    return length;
  }
  return std::move(best.solution);
}

}  // namespace sparsebalance::planner
