#include "coordinator/planner/solution.h"

#include <algorithm>

namespace sparsebalance::planner {

int64_t Evaluator::MicroBatchNs(int rank, const MicroBatchItems& items,
                                const std::vector<int32_t>& budgets) const {
  if (items.empty()) return problem_.OnRank(rank, problem_.zero_weight_ns());
  int64_t sum = problem_.predictor().constant_ns();
  for (const int32_t i : items) sum += problem_.TimeNs(i, budgets[i]);
  return problem_.OnRank(rank, sum);
}

int64_t Evaluator::RankNs(int rank, const RankItems& items, const std::vector<int32_t>& budgets) {
  times_.clear();
  for (const MicroBatchItems& mb : items) times_.push_back(MicroBatchNs(rank, mb, budgets));
  return schedule_.Span(times_);
}

int64_t Evaluator::StepNs(const Batching& batching, const std::vector<int32_t>& budgets) {
  int64_t step = 0;
  for (size_t r = 0; r < batching.size(); ++r) {
    step = std::max(step, RankNs(static_cast<int>(r), batching[r], budgets));
  }
  return step;
}

int64_t CoverageSum(const Problem& problem, const std::vector<int32_t>& budgets) {
  int64_t sum = 0;
  for (int i = 0; i < problem.num_sequences(); ++i) sum += problem.Coverage(i, budgets[i]);
  return sum;
}

}  // namespace sparsebalance::planner
