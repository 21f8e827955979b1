#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/planner/packing.h"
#include "coordinator/planner/policies/registry.h"

namespace sparsebalance::planner {
namespace {

// Sequences in order, a new micro-batch whenever the next one does not fit or `most` are in.
RankItems PackInOrder(const Problem& problem, int rank, const std::vector<int32_t>& items,
                      int most) {
  RankItems out;
  int64_t free = 0;
  for (const int32_t i : items) {
    const int64_t size = problem.padded_tokens(i);
    if (out.empty() || free < size || (most > 0 && static_cast<int>(out.back().size()) >= most)) {
      out.emplace_back();
      free = problem.rank(rank).cap_tokens;
    }
    out.back().push_back(i);
    free -= size;
  }
  return out;
}

}  // namespace

absl::StatusOr<Solution> SolveNone(const Problem& problem) {
  const int ranks = problem.num_ranks();
  std::vector<std::vector<int32_t>> assigned(ranks);
  int next = 0;
  for (const int32_t i : problem.arrival_order()) {
    // A rank whose cap is too small is passed over; some rank fits, Problem::Create saw to it.
    int r = next;
    while (problem.padded_tokens(i) > problem.rank(r).cap_tokens) r = (r + 1) % ranks;
    assigned[r].push_back(i);
    next = (next + 1) % ranks;
  }
  Solution solution;
  solution.budgets = problem.BaseBudgets();
  solution.batching.resize(ranks);
  const int fixed = problem.fixed_count();
  for (int r = 0; r < ranks; ++r) {
    int most = problem.micro_batch_size();
    if (fixed > 0) {
      const int even = (static_cast<int>(assigned[r].size()) + fixed - 1) / fixed;
      most = most > 0 ? std::max(most, even) : even;
    }
    solution.batching[r] = PackInOrder(problem, r, assigned[r], most);
    if (fixed > 0 && static_cast<int>(solution.batching[r].size()) > fixed) {
      solution.batching[r] = PackInOrder(problem, r, assigned[r], 0);
    }
    if (fixed > 0 && static_cast<int>(solution.batching[r].size()) > fixed) {
      // The hard constraint comes before the order of arrival.
      std::vector<int64_t> tokens(problem.num_sequences());
      for (int i = 0; i < problem.num_sequences(); ++i) tokens[i] = problem.sequence(i).tokens;
      auto batching = PackFixedCounts(problem, tokens, fixed);
      if (!batching.ok()) return batching.status();
      solution.batching = *std::move(batching);
      return solution;
    }
  }
  FinishCounts(problem, solution.batching);
  return solution;
}

}  // namespace sparsebalance::planner
