// What one step of the whole job measured, the same on every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparsebalance/v1/coordinator.pb.h"
#include "worker/comm/communicator.h"

namespace sparsebalance {

// What a rank contributes. Milliseconds of wall time.
struct RankStepStats {
  double step_ms = 0;       // from waiting for the plan to the end of the update
  double compute_ms = 0;    // forward and backward of the rank's micro-batches
  double idle_ms = 0;       // waiting for the slowest rank's gradients
  double plan_wait_ms = 0;  // exposed: nothing else was left to do
  double agreement_ms = 0;
  double loss_sum = 0;  // nats over supervised tokens
  double supervised_tokens = 0;
  double tokens = 0;
  double sequences = 0;
  double coverage_sum = 0;  // over sequences, of the realized budgets
  double peak_memory_bytes = 0;
  // Of sequences whose coverage was audited: the attention mass that the chosen blocks held, and
  // what coverage had said of it.
  double audited_sequences = 0;
  double audited_mass_sum = 0;
  double audited_coverage_sum = 0;
  double guard_raises = 0;    // sequences that got more than the planned budget in some layer
  double attended_flops = 0;  // UsefulFlops of the rank's micro-batches
  double peak_flops = 0;      // a second, of the rank's device; 0: not known
  double no_plan_reason = 0;  // v1::NoPlanReason
};

struct StepRecord {
  uint64_t step = 0;
  std::string policy;  // that the step was trained by
  bool used_fallback = false;
  bool skipped = false;          // gradient not finite: no update was made
  double predicted_step_ms = 0;  // 0: no prediction
  double learning_rate = 0;
  double gradient_norm = 0;
  std::vector<RankStepStats> ranks;

  double step_ms() const;         // slowest rank
  double rank_imbalance() const;  // max / mean of compute_ms; 1 where nothing was computed
  double idle_fraction() const;   // idle over step time, summed over ranks
  double mean_coverage() const;   // over sequences
  double loss() const;            // mean over supervised tokens
  double plan_wait_ms() const;    // largest over ranks
  double tokens() const;
  double sequences() const;
  double peak_memory_bytes() const;  // largest over ranks
  double audited_sequences() const;
  double audited_mass() const;      // mean over audited sequences; 0 where there is none
  double audited_coverage() const;  // the same
  double guard_raises() const;
  double attended_flops() const;
  // Attended FLOPs over what the devices could have done in the step; nothing where the peak of one
  // is not known.
  std::optional<double> mfu() const;
  // The ranks' first reason, in the enum's order; NONE unless used_fallback.
  v1::NoPlanReason no_plan_reason() const;
};

// Collective: every rank's stats, in rank order. In `mine`, idle_ms is the time from the end of
// backward to that of the all-reduce; in the result it is less by the least of all ranks, which is
// what the all-reduce itself took.
absl::StatusOr<std::vector<RankStepStats>> GatherStats(Communicator& comm,
                                                       const RankStepStats& mine);

}  // namespace sparsebalance
