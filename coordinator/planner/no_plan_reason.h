// Why a step was trained without a plan of the coordinator, in the words of metrics and logs.
#pragma once

#include "sparsebalance/v1/telemetry.pb.h"

namespace sparsebalance::planner {

// "coordinator_away", "late", "unfit", "ranks_differ"; "unknown" for NONE and for numbers of later
// versions.
const char* NoPlanReasonName(v1::NoPlanReason reason);

}  // namespace sparsebalance::planner
