#include "coordinator/planner/policies/registry.h"

#include <array>

namespace sparsebalance::planner {
namespace {

constexpr std::array<Policy, 5> kPolicies = {{
    {"none", SolveNone},
    {"length", SolveLength},
    {"karmarkar-karp", SolveKarmarkarKarp},
    {"paper", SolvePaper},
    {kDefaultPolicy, SolveSparseBalance},
}};

}  // namespace

absl::Span<const Policy> Policies() { return kPolicies; }

const Policy* FindPolicy(std::string_view name) {
  if (name.empty()) name = kDefaultPolicy;
  for (const Policy& policy : kPolicies) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

}  // namespace sparsebalance::planner
