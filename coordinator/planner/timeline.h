// When each forward and backward of a plan runs, by the 1F1B schedule (planner/schedule.h).
#pragma once

#include <cstdint>
#include <vector>

#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

struct Operation {
  int micro_batch;
  bool backward;
  double begin_ms, end_ms;  // from the start of the step
};

struct StageTimeline {
  std::vector<Operation> operations;  // in the order in which they run
};

// [stage] of one rank. Every stage takes the micro-batch's predicted_ms, of which the forward is
// `forward_fraction`.
std::vector<StageTimeline> TimelineOf(const v1::RankPlan& rank, uint32_t stages,
                                      double forward_fraction);

}  // namespace sparsebalance::planner
