// From a solution to the message that workers act on.
#pragma once

#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// Fills every field of an empty plan but step, policy and length_policy_step_ms.
void BuildPlan(const Problem& problem, const Solution& solution, v1::Plan& plan);

}  // namespace sparsebalance::planner
