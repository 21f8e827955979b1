// Policies side by side on the same generated batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulation/coverage_source.h"
#include "coordinator/simulation/workload.h"
#include "sparsebalance/v1/plan.pb.h"
#include "sparsebalance/v1/profile.pb.h"

namespace sparsebalance::simulation {

struct SimulationOptions {
  Workload workload;
  CoverageSource coverage;
  v1::LatencyProfile profile;
  v1::PlanSettings settings;  // of all policies; settings.policy is not read
  uint64_t global_batch_size = 16;
  uint64_t steps = 50;
  uint64_t seed = 1;
  uint32_t layers = 0;  // with a coverage curve each, drawn independently; 0: one a sequence
  std::vector<std::string> policies;
};

struct PolicyResult {
  std::string policy;
  double step_ms_mean = 0;
  double speedup = 0;  // step time of the first policy over this one's
  // Of ranks with one stage, of micro-batches with more; max over mean, mean over steps.
  double imbalance_mean = 0;
  double coverage_mean = 0;
  double coverage_ratio_min = 1;  // least of any sequence: coverage over that at the base budget
  double lower_bound_ms_mean = 0;
  double gap_mean = 0;  // mean over steps of step time / lower bound - 1
  double plan_ms_p50 = 0;
  double plan_ms_p99 = 0;
  // Counted again from plans and requests, not taken from the planner.
  uint64_t cap_violations = 0;
  uint64_t guard_violations = 0;
  uint64_t fallbacks = 0;
  // With settings.lookahead_steps: sequences that went to a later batch, and the furthest that one
  // was trained from where it came from.
  uint64_t exchanged_sequences = 0;
  uint64_t max_displacement_steps = 0;
  // Of every sequence of every step.
  std::vector<uint32_t> budgets;
  std::vector<double> coverages;
  v1::Plan first_plan;
};

struct SimulationResult {
  std::vector<PolicyResult> policies;
  v1::PlanRequest first_request;
  uint64_t sequences = 0;
  uint64_t tokens = 0;
  std::vector<uint64_t> lengths;  // of all sequences
};

// Errors are those of planner::MakePlan, with the step and policy, and INVALID_ARGUMENT for options
// that make no batch.
absl::StatusOr<SimulationResult> Simulate(const SimulationOptions& options);

}  // namespace sparsebalance::simulation
