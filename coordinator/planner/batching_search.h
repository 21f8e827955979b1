// Batchings built and improved against the schedule, for given budgets.
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

// Moves and swaps sequences between ranks while that makes the squares of the ranks' times smaller
// in sum, and with more than one stage reorders, splits and joins the micro-batches of each rank
// while that makes the rank faster. At most `max_tries` changes are looked at, so that the result
// does not depend on the machine. Caps and fixed counts hold throughout. Never makes a rank that it
// changes alone slower, nor the sum of squares larger.
void ImproveBatching(const Problem& problem, const std::vector<int32_t>& budgets, int64_t max_tries,
                     Batching& batching);

}  // namespace sparsebalance::planner
