// What an evaluation found, as tables for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/eval/evaluator.h"

namespace sparsebalance::eval {

struct EvalReport {
  std::string checkpoint;
  uint64_t step = 0;
  std::string budget;  // as given: a number of blocks or `dense`
  std::optional<EvalResult> perplexity;
  std::optional<RecallResult> recall;
};

std::string FormatTables(const EvalReport& report);

// {"checkpoint", "step", "budget", "perplexity": {"buckets": [...], "total": {...}}, "recall":
// {"buckets", "total", "beyond_own_block"}}; a part that was not asked for is left out.
std::string FormatJson(const EvalReport& report);

}  // namespace sparsebalance::eval
