// Settings as people write them: in flags, job files and requests.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// Each is INVALID_ARGUMENT, "is "TEXT"; use ..." to be put after the name of the flag or field.
// "baseline", "guard", "fixed" or a number in [0, 1].
absl::Status ParseCoverageFloor(const std::string& text, v1::CoverageFloor& floor);
// "mean", "min" or "max".
absl::Status ParsePaperAnchor(const std::string& text, v1::PlanSettings& settings);
// "fast", "normal" or "high".
absl::Status ParseSearchEffort(const std::string& text, v1::PlanSettings& settings);

// The status with a name before its message.
absl::Status Named(const std::string& name, const absl::Status& status);

}  // namespace sparsebalance::planner
