// Batchings for given budgets: built, and evened out.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"

namespace sparsebalance::planner {

// LPT over ranks by time under the budgets and the ranks' speeds. One stage: as few micro-batches
// as the cap allows. More: one sequence a micro-batch, short ones first and last, where they fill
// and drain the pipeline, long ones in the middle.
absl::StatusOr<Batching> BuildBatching(const Problem& problem, const std::vector<int32_t>& budgets);

// One stage: the slowest rank gives a sequence to one of the fastest or swaps one with it, while
// that makes the slower of the two faster; O(sequences of a rank * log) an exchange and a few
// exchanges a rank. Caps and fixed counts hold throughout.
void BalanceRanks(const Problem& problem, const std::vector<int32_t>& budgets, Batching& batching);

}  // namespace sparsebalance::planner
