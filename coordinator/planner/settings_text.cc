#include "coordinator/planner/settings_text.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::planner {
namespace {

absl::Status Wrong(const std::string& text, const std::string& choices) {
  return absl::InvalidArgumentError(absl::StrCat("is \"", text, "\"; use ", choices));
}

}  // namespace

absl::Status ParseCoverageFloor(const std::string& text, v1::CoverageFloor& floor) {
  double value = 0;
  if (text == "baseline") {
    floor.set_mode(v1::COVERAGE_FLOOR_MODE_BASELINE);
  } else if (text == "guard") {
    floor.set_mode(v1::COVERAGE_FLOOR_MODE_GUARD);
  } else if (text == "fixed") {
    floor.set_mode(v1::COVERAGE_FLOOR_MODE_FIXED);
  } else if (absl::SimpleAtod(text, &value) && value >= 0 && value <= 1) {
    floor.set_value(value);
  } else {
    return Wrong(text, "baseline, guard, fixed or a number between 0 and 1");
  }
  return absl::OkStatus();
}

absl::Status ParsePaperAnchor(const std::string& text, v1::PlanSettings& settings) {
  if (text == "mean") {
    settings.set_paper_anchor(v1::PAPER_ANCHOR_MEAN);
  } else if (text == "min") {
    settings.set_paper_anchor(v1::PAPER_ANCHOR_MIN);
  } else if (text == "max") {
    settings.set_paper_anchor(v1::PAPER_ANCHOR_MAX);
  } else {
    return Wrong(text, "mean, min or max");
  }
  return absl::OkStatus();
}

absl::Status ParseSearchEffort(const std::string& text, v1::PlanSettings& settings) {
  if (text == "fast") {
    settings.set_search_effort(v1::SEARCH_EFFORT_FAST);
  } else if (text == "normal") {
    settings.set_search_effort(v1::SEARCH_EFFORT_NORMAL);
  } else if (text == "high") {
    settings.set_search_effort(v1::SEARCH_EFFORT_HIGH);
  } else {
    return Wrong(text, "fast, normal or high");
  }
  return absl::OkStatus();
}

absl::Status Named(const std::string& name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(name, " ", std::string(status.message())));
}

}  // namespace sparsebalance::planner
