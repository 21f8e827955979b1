// What an evaluation found, as tables for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/eval/evaluator.h"

namespace sparsebalance::eval {

struct EvalReport {
  std::string model;             // its folder
  std::optional<uint64_t> step;  // steps trained, of a checkpoint
  std::string budget;            // as given: a number of blocks or `dense`
  std::optional<EvalResult> perplexity;
  std::optional<RecallResult> recall;
};

std::string FormatTables(const EvalReport& report);

// {"model", "step", "budget", "perplexity": {"buckets": [...], "total": {...}}, "recall":
// {"buckets", "total", "beyond_own_block"}}; without "step" where the model is no checkpoint, and
// without a part that was not asked for.
std::string FormatJson(const EvalReport& report);

}  // namespace sparsebalance::eval
