// Plans in words.
#pragma once

#include <string>
#include <vector>

#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// Sentences that a person can act on: what was planned and by which policy, what limits the step
// and what would help, how it compares with `length`, what became of coverage and who lost most,
// how far the plan may be from the best one, and why a fallback was used. The plan is one made from
// the request; a request that does not pass ValidateRequest gives one sentence that says so.
std::vector<std::string> Explain(const v1::PlanRequest& request, const v1::Plan& plan);

}  // namespace sparsebalance::planner
