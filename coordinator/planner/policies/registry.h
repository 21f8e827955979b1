// All policies by name. To add one: write a solver, add a line to the table in registry.cc.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"

namespace sparsebalance::planner {

// What SolveLength gives for a problem, and what it takes without the step's constant: the measure
// of every other policy.
struct LengthPlan {
  Solution solution;
  int64_t step_ns = 0;
};
absl::StatusOr<LengthPlan> MakeLengthPlan(const Problem& problem);

struct Policy {
  std::string_view name;
  absl::StatusOr<Solution> (*solve)(const Problem& problem, const LengthPlan& length);
};

inline constexpr std::string_view kDefaultPolicy = "sparsebalance";

// In the order in which they are shown to people.
absl::Span<const Policy> Policies();

// Empty reads as the default; nullptr for an unknown name.
const Policy* FindPolicy(std::string_view name);

// Arrival order, round robin over ranks, consecutive micro-batches; base budgets.
absl::StatusOr<Solution> SolveNone(const Problem& problem);
// Longest processing time first on tokens; base budgets. Uses nothing but tokens and caps.
absl::StatusOr<Solution> SolveLength(const Problem& problem);
// Largest differencing on predicted latency over ranks; base budgets.
absl::StatusOr<Solution> SolveKarmarkarKarp(const Problem& problem);
// Sparsity-aware batching, then dynamic sparsity tuning towards an anchor (arXiv 2604.13847).
absl::StatusOr<Solution> SolvePaper(const Problem& problem);
// Batching and budgets together against the schedule, under the coverage floor.
absl::StatusOr<Solution> SolveSparseBalance(const Problem& problem, const LengthPlan& measure);

}  // namespace sparsebalance::planner
