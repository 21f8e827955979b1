#include "coordinator/planner/solution.h"

#include <algorithm>

namespace sparsebalance::planner {

void Evaluator::SetBudgets(const std::vector<int32_t>& budgets) {
  // In the order of memory: micro-batches hold sequences from all over it.
  time_.resize(budgets.size());
  for (size_t i = 0; i < budgets.size(); ++i) {
    time_[i] = problem_.TimeNs(static_cast<int>(i), budgets[i]);
  }
}

int64_t Evaluator::MicroBatchNs(int rank, const MicroBatchItems& items) const {
  if (items.empty()) return problem_.OnRank(rank, problem_.zero_weight_ns());
  int64_t sum = problem_.predictor().constant_ns();
  for (const int32_t i : items) sum += time_[i];
  return problem_.OnRank(rank, sum);
}

int64_t Evaluator::RankNs(int rank, const RankItems& items) {
  times_.clear();
  for (const MicroBatchItems& mb : items) times_.push_back(MicroBatchNs(rank, mb));
  return schedule_.Span(times_);
}

int64_t Evaluator::StepNs(const Batching& batching, const std::vector<int32_t>& budgets) {
  SetBudgets(budgets);
  int64_t step = 0;
  for (size_t r = 0; r < batching.size(); ++r) {
    step = std::max(step, RankNs(static_cast<int>(r), batching[r]));
  }
  return step;
}

int64_t CoverageSum(const Problem& problem, const std::vector<int32_t>& budgets) {
  if (problem.fixed_budgets()) return problem.base_coverage_sum();
  int64_t sum = 0;
  for (int i = 0; i < problem.num_sequences(); ++i) sum += problem.Coverage(i, budgets[i]);
  return sum;
}

}  // namespace sparsebalance::planner
