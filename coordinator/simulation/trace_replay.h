// What a recorded training run says about its balance: how long its steps would take by the
// schedule, who is slow, and what perfect balance would give.
//
// A trace has one line for every micro-batch on every stage of every data-parallel rank:
//   step,dp_rank,stage,micro_batch,forward_start_ms,forward_ms,backward_start_ms,backward_ms
// with starts from the first of the step. A step's actual time is from its first forward's start to
// its last backward's end; its predicted time is that of a 1F1B simulation fed with the durations.
//
// Durations are split, in logarithms, into a factor of the rank, a factor of the stage and what is
// left: the micro-batch's own size. Medians are used throughout, so that single outliers tell of
// nothing. A factor is a cause where taking it away, all else as it was, would shorten the steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsebalance::simulation {

struct SlowPart {
  uint32_t index;  // data-parallel rank or stage
  double factor;   // its time over the median's, > 1
};

enum class Cause { kNone, kSlowRank, kSlowStage, kUnevenSequences };

// "none", "slow_rank", "slow_stage" or "uneven_sequences".
std::string CauseName(Cause cause);

struct TraceReport {
  uint32_t ranks = 0;
  uint32_t stages = 0;
  uint64_t steps = 0;
  double actual_ms_mean = 0;
  double predicted_ms_mean = 0;
  double error_mean = 0;      // of |predicted - actual| / actual, over steps
  double error_max_abs = 0;   // the largest of these
  double imbalance_mean = 0;  // of ranks' total compute, max over mean, over steps
  // Predicted mean step time were all micro-batches of a step alike on every rank and stage, with
  // the same total of work.
  double balanced_ms_mean = 0;
  std::vector<SlowPart> slow_ranks;  // slowest first
  std::vector<SlowPart> slow_stages;
  Cause cause = Cause::kNone;
  // Predicted mean step time without the slow ranks' and stages' factors, and with every
  // micro-batch of a rank and stage alike.
  double without_slow_ranks_ms = 0;
  double without_slow_stages_ms = 0;
  double without_uneven_ms = 0;
};

// INVALID_ARGUMENT with line where a line is wrong, a step lacks a micro-batch, or ranks and stages
// do not form a grid.
absl::StatusOr<TraceReport> ReplayTrace(const std::string& path);

}  // namespace sparsebalance::simulation
