#include "coordinator/planner/no_plan_reason.h"

namespace sparsebalance::planner {

const char* NoPlanReasonName(v1::NoPlanReason reason) {
  switch (reason) {
    case v1::NO_PLAN_REASON_COORDINATOR_AWAY:
      return "coordinator_away";
    case v1::NO_PLAN_REASON_LATE:
      return "late";
    case v1::NO_PLAN_REASON_UNFIT:
      return "unfit";
    case v1::NO_PLAN_REASON_RANKS_DIFFER:
      return "ranks_differ";
    default:
      return "unknown";
  }
}

}  // namespace sparsebalance::planner
