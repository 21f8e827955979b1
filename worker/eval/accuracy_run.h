// One seed of the comparison of fixed and dynamic budgets: a coordinator and a node of several
// ranks train two models side by side, from the same parameters and on the same batches; both are
// then asked the same held-out queries. For equal time, the slower of the two is trained once more
// with as many steps as fit into the time of the faster one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "sparsebalance/v1/plan.pb.h"
#include "worker/eval/accuracy_report.h"
#include "worker/eval/recall_task.h"

namespace sparsebalance::eval {

struct AccuracyRunOptions {
  RecallTaskOptions task;  // its seed is replaced
  std::string fixed_policy = "length";
  std::string dynamic_policy = "sparsebalance";
  std::string folder;  // for data sets, checkpoints and records of the run
  uint64_t steps = 600;
  uint32_t ranks = 2;
  uint32_t global_batch_size = 16;
  uint32_t base_budget_blocks = 8;
  v1::CoverageFloor coverage_floor;  // of the dynamic policy; unset: the mean of the fixed budgets
  uint64_t max_tokens_per_micro_batch = 1024;
  double learning_rate = 0.004;  // at its peak; falls to a tenth along a cosine
  uint64_t held_out_sequences = 512;
  // The planner learns from CPU time, as the comparison counts it; else from wall time, which on a
  // busy machine holds other processes' work.
  bool planner_sees_cpu_time = true;
  std::function<void(const std::string&)> log = [](const std::string&) {};
};

// Time is the CPU time of the ranks' threads in forward and backward, of the slowest rank in each
// step: what the step costs on a device of its own. Wall time would also count what else the
// machine does, and on ranks that share cores it counts the other rank's work.
absl::StatusOr<SeedResult> RunAccuracySeed(const AccuracyRunOptions& options, uint64_t seed);

}  // namespace sparsebalance::eval
