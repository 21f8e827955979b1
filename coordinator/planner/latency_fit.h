// A latency model from measured points.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/planner/nnls.h"
#include "sparsebalance/v1/plan.pb.h"
#include "sparsebalance/v1/profile.pb.h"

namespace sparsebalance::planner {

struct LatencyFit {
  v1::LatencyModel model;  // with its range and block_tokens; step_constant_ms is 0
  // Mean of |fitted - measured| / measured over the points.
  double mean_relative_error = 0;
};

// Non-negative least squares on relative errors. Each point is one micro-batch of one sequence.
// INVALID_ARGUMENT (FieldViolation) where there is no point, or one without tokens, budget or time.
absl::StatusOr<LatencyFit> FitLatency(absl::Span<const v1::ProfilePoint> points,
                                      uint32_t block_tokens);

// What the coefficients (constant, per token, per pair, router) are multiplied with for a
// micro-batch; `budget` may be a mean over layers.
NormalEquations::Vector SequenceFeatures(uint64_t tokens, double block_pairs,
                                         uint32_t block_tokens);

}  // namespace sparsebalance::planner
