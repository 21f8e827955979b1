// Checking and cutting plans.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

class Problem;

// The plan with only the ranks listed (data-parallel indices), in the plan's order; all other
// fields are those of the whole plan. Ranks that the plan does not have are passed over.
v1::Plan PlanForRanks(const v1::Plan& plan, absl::Span<const uint32_t> data_ranks);

// Every hard constraint, whoever made the plan: all ranks once and in order; every sequence exactly
// once and whole; padded tokens of each micro-batch within its rank's cap; budgets within [min,
// max] and, where below the base budget, within the coverage guard; the counts of micro-batches
// that the job asks for; zero-weight exactly where empty. INTERNAL names the first violation. The
// request must have passed ValidateRequest.
absl::Status CheckPlan(const v1::PlanRequest& request, const v1::Plan& plan);
// The same for a request that has been read already.
absl::Status CheckPlan(const Problem& problem, const v1::Plan& plan);

}  // namespace sparsebalance::planner
