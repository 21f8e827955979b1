#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace sparsebalance::model {

// Learning rate by step: linear warm-up from peak / warmup_steps, then half a cosine down to
// `minimum` at total_steps, constant after it.
struct LearningRateSchedule {
  double peak = 1e-3;
  double minimum = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  // INVALID_ARGUMENT unless 0 <= minimum <= peak, 0 <= warmup_steps <= total_steps, total_steps
  // >= 1.
  absl::Status Validate() const;
};

// Rate of the update after `step` updates have been done.
double LearningRate(const LearningRateSchedule& schedule, int64_t step);

}  // namespace sparsebalance::model
