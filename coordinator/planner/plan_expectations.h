// What every plan must keep, checked without the planner's own checker.
#pragma once

#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// Every sequence exactly once and whole, caps of padded tokens, the counts that the job asks for.
void ExpectHardConstraints(const v1::PlanRequest& request, const v1::Plan& plan);

// No budget outside its range or below the guard.
void ExpectGuard(const v1::PlanRequest& request, const v1::Plan& plan);

}  // namespace sparsebalance::planner
