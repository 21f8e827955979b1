// All ranks act on one plan or on none.
//
// Before each step every rank contributes what it holds to one MAX all-reduce over the values and
// their complements, which gives maximum and minimum of each field. The plan is used only where
// every rank has one and all fields are equal; else all use the fallback that each computed from
// the batch. Ranks whose fallbacks differ have different data or another version, and must stop.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace sparsebalance {

struct PlanVote {
  uint64_t step = 0;  // that the rank is about to run
  bool has_plan = false;
  // Of the plan, meaningful where has_plan.
  uint64_t leader_epoch = 0;
  uint64_t generation = 0;
  uint64_t plan_digest = 0;
  // Of the `length` plan computed by the rank itself.
  uint64_t fallback_digest = 0;
  // The rank wants to leave before this step.
  bool stop_requested = false;
};

struct PlanAgreement {
  bool use_plan = false;  // false: the fallback
  bool stop = false;      // some rank asked for it: no rank runs the step
  std::string reason;     // why the fallback, empty with a plan
};

// Collective. FAILED_PRECONDITION naming the ranks where steps or fallback digests differ; errors
// of the communicator pass through.
absl::StatusOr<PlanAgreement> AgreeOnPlan(Communicator& comm, const PlanVote& vote);

}  // namespace sparsebalance
