#include "coordinator/planner/curve_points.h"

#include <algorithm>
#include <cmath>

namespace sparsebalance::planner {

int64_t ToCoverage(double value) {
  return std::llround(std::clamp(value, 0.0, 1.0) * static_cast<double>(kFullCoverage));
}

void AppendPoints(const v1::CoverageCurve& curve, int32_t blocks, std::vector<CurvePoint>& out) {
  int64_t least = 0;
  for (int i = 0; i < curve.budget_blocks_size(); ++i) {
    const auto budget = static_cast<int32_t>(curve.budget_blocks(i));
    least = budget == 1        ? 0
            : budget == blocks ? kFullCoverage
                               : std::max(least, ToCoverage(curve.coverage(i)));
    out.push_back({budget, least});
  }
  if (out.back().budget < blocks) out.push_back({blocks, kFullCoverage});
}

int64_t Interpolate(absl::Span<const CurvePoint> curve, int32_t budget) {
  const auto above =
      std::upper_bound(curve.begin(), curve.end(), budget,
                       [](int32_t k, const CurvePoint& point) { return k < point.budget; });
  if (above == curve.end()) return curve.back().coverage;
  if (above == curve.begin()) return curve.front().coverage;
  const CurvePoint& left = *(above - 1);
  return left.coverage +
         (above->coverage - left.coverage) * (budget - left.budget) / (above->budget - left.budget);
}

}  // namespace sparsebalance::planner
