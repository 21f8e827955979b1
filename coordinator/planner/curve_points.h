// Coverage curves in integers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

inline constexpr int64_t kFullCoverage = 1'000'000'000;

struct CurvePoint {
  int32_t budget;
  int64_t coverage;  // 1e-9
};

// In units of 1e-9, rounded to nearest; values outside [0, 1] are clamped.
int64_t ToCoverage(double value);

// Adds the points of a curve that is not empty and has passed CheckCurve for so many blocks (> 1),
// with its ends at (1, 0) and (blocks, 1).
void AppendPoints(const v1::CoverageCurve& curve, int32_t blocks, std::vector<CurvePoint>& out);

// What Interpolate gives on the points above, without making them; budget < blocks.
int64_t CoverageAtBudget(const v1::CoverageCurve& curve, int32_t blocks, int32_t budget);

// Linear between points, constant beyond the first and the last; rounded down.
int64_t Interpolate(absl::Span<const CurvePoint> curve, int32_t budget);

}  // namespace sparsebalance::planner
