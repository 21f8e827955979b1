// A plan as the status page draws it.
//
// All of it is bounded, whatever the job's size: of many ranks the slowest are drawn, of many
// micro-batches the first, and sequences are put together by length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/service/plan_ring.h"
#include "nlohmann/json.hpp"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance {

struct PagePlanLimits {
  size_t ranks = 32;         // data-parallel
  size_t lanes = 64;         // ranks times stages; one rank is drawn in any case
  size_t operations = 4000;  // forwards and backwards of micro-batches
  int sequences = 8;         // named of each micro-batch
};

// {"step", "generation", "plan": v1.Plan without its ranks and exchanges, "timeline", "lengths",
// ...}; docs/coordinator.md describes it for its readers, the page's scripts.
nlohmann::json PagePlan(const PlannedStep& planned, const PagePlanLimits& limits = {});

// Sequences of similar length in a plan.
struct LengthClass {
  uint64_t from_tokens = 0;   // at least
  uint64_t below_tokens = 0;  // fewer than
  uint64_t sequences = 0;
  uint64_t tokens = 0;
  uint32_t least_budget = 0;
  uint32_t most_budget = 0;
  double mean_budget = 0;
  double mean_coverage = 0;
  double least_coverage = 0;
  double mean_base_coverage = 0;  // the same sequences at the base budget
};

// By powers of two and one and a half times them, shortest first; classes without any are left out.
std::vector<LengthClass> LengthClasses(const v1::PlanRequest& request, const v1::Plan& plan);

}  // namespace sparsebalance
