// From a global batch to a plan: which rank runs which sequences in which micro-batches, with which
// attention budgets.
//
//   v1::PlanRequest request = ...;
//   absl::StatusOr<v1::Plan> plan = MakePlan(request);
//
// A plan is a pure function of its request: the same request gives the same bytes on any machine.
// Every plan has passed CheckPlan (plan_slice.h) before it is returned.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/planner/validation.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// By settings.policy; empty reads as `sparsebalance`. Without request.latency the default model
// (latency_model.h) is used. Errors:
//   INVALID_ARGUMENT (FieldViolation)     a field is out of range
//   INVALID_ARGUMENT (SequenceRejected)   a sequence fits no micro-batch
//   FAILED_PRECONDITION (InfeasiblePlan)  the cap contradicts a fixed number of micro-batches
absl::StatusOr<v1::Plan> MakePlan(const v1::PlanRequest& request);

// The same into `plan`, which may lie on an arena: a large plan is then made, and freed, faster.
// After an error `plan` is unspecified.
absl::Status MakePlan(const v1::PlanRequest& request, v1::Plan& plan);

// What workers train by when they have no plan: the policy `length` from settings, step and
// sequences alone. Coverage, latency and rank factors of the request are ignored, so that all
// workers compute the same bytes whatever each of them knows. It predicts no times.
absl::StatusOr<v1::Plan> MakeFallbackPlan(const v1::PlanRequest& request);

// Names that settings.policy may have.
std::vector<std::string> PolicyNames();

}  // namespace sparsebalance::planner
