#include "coordinator/planner/policies/registry.h"

#include <array>
#include <utility>

namespace sparsebalance::planner {
namespace {

template <absl::StatusOr<Solution> (*kSolve)(const Problem&)>
absl::StatusOr<Solution> Alone(const Problem& problem, const LengthPlan& /*length*/) {
  return kSolve(problem);
}

absl::StatusOr<Solution> Length(const Problem& /*problem*/, const LengthPlan& length) {
  return length.solution;
}

constexpr std::array<Policy, 5> kPolicies = {{
    {"none", Alone<SolveNone>},
    {"length", Length},
    {"karmarkar-karp", Alone<SolveKarmarkarKarp>},
    {"paper", Alone<SolvePaper>},
    {kDefaultPolicy, SolveSparseBalance},
}};

}  // namespace

absl::StatusOr<LengthPlan> MakeLengthPlan(const Problem& problem) {
  absl::StatusOr<Solution> solution = SolveLength(problem);
  if (!solution.ok()) return solution.status();
  LengthPlan plan{*std::move(solution), 0};
  plan.step_ns = Evaluator(problem).StepNs(plan.solution.batching, plan.solution.budgets);
  return plan;
}

absl::Span<const Policy> Policies() { return kPolicies; }

const Policy* FindPolicy(std::string_view name) {
  if (name.empty()) name = kDefaultPolicy;
  for (const Policy& policy : kPolicies) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

}  // namespace sparsebalance::planner
