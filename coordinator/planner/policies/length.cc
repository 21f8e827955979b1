#include <utility>
#include <vector>

#include "coordinator/planner/packing.h"
#include "coordinator/planner/policies/registry.h"

namespace sparsebalance::planner {

absl::StatusOr<Solution> SolveLength(const Problem& problem) {
  std::vector<int64_t> tokens(problem.num_sequences());
  for (int i = 0; i < problem.num_sequences(); ++i) tokens[i] = problem.sequence(i).tokens;
  const int most = ReferenceCount(problem, problem.num_sequences(), problem.num_ranks()) *
                   problem.micro_batch_size();
  auto batching =
      PackBatching(problem, AssignToRanks(problem, tokens, most, /*use_speed=*/false), tokens);
  if (!batching.ok()) return batching.status();
  Solution solution;
  solution.batching = *std::move(batching);
  solution.budgets = problem.BaseBudgets();
  return solution;
}

}  // namespace sparsebalance::planner
