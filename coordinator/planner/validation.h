// Checks of what comes in. Every error names the field, its value and what to do, and carries a
// FieldViolation detail.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// INVALID_ARGUMENT with a FieldViolation of the first field that is wrong; paths start at
// "settings".
absl::Status ValidateSettings(const v1::PlanSettings& settings);

// Settings, latency, sequences, curves and rank factors. Sequences longer than the cap are found
// later, by MakePlan, with a detail of their own.
absl::Status ValidateRequest(const v1::PlanRequest& request);

// INVALID_ARGUMENT with a FieldViolation; `problem` completes "FIELD is VALUE: ...".
absl::Status FieldError(const std::string& field, const std::string& value,
                        const std::string& problem);

}  // namespace sparsebalance::planner
