#include "coordinator/planner/curve_points.h"

#include <algorithm>

namespace sparsebalance::planner {

int64_t ToCoverage(double value) {
  const double scaled = std::clamp(value, 0.0, 1.0) * static_cast<double>(kFullCoverage);
  // Adding a half is exact from a half on; what is below it is nearer to nothing. llround is a call
  // of the C library, and this is done for every point of a batch.
  // NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return scaled < 0.5 ? 0 : static_cast<int64_t>(scaled + 0.5);
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

int64_t CoverageAtBudget(const v1::CoverageCurve& curve, int32_t blocks, int32_t budget) {
  const auto* budgets = curve.budget_blocks().data();
  const int points = curve.budget_blocks_size();
  const auto above = static_cast<int>(
      std::upper_bound(budgets, budgets + points, static_cast<uint32_t>(budget)) - budgets);
  // Rounding keeps the order, so the highest so far may be found before it is rounded.
  double highest = 0;
  for (int i = 1; i < above; ++i) highest = std::max(highest, curve.coverage(i));
  const CurvePoint left = {static_cast<int32_t>(budgets[above - 1]), ToCoverage(highest)};
  CurvePoint right = {blocks, kFullCoverage};
  if (above < points && budgets[above] != static_cast<uint32_t>(blocks)) {
    right = {static_cast<int32_t>(budgets[above]),
             ToCoverage(std::max(highest, curve.coverage(above)))};
  }
  return left.coverage +
         (right.coverage - left.coverage) * (budget - left.budget) / (right.budget - left.budget);
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
