#include "coordinator/planner/coverage_curve.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace sparsebalance::planner {
namespace {

// Coverage is measured in float; anything closer than this to its bound is the bound.
constexpr double kTolerance = 1e-6;

v1::CoverageCurve CurveOnPoints(const std::vector<uint32_t>& budgets, double alpha) {
  v1::CoverageCurve curve;
  const uint32_t blocks = budgets.back();
  if (blocks == 1) {
    curve.add_budget_blocks(1);
    curve.add_coverage(1.0);
    return curve;
  }
  const auto term = [alpha](uint32_t j) { return alpha == 1.0 ? 1.0 / j : std::pow(j, -alpha); };
  double total = 0;
  for (uint32_t j = 1; j < blocks; ++j) total += term(j);
  double sum = 0;
  uint32_t next = 1;
  for (const uint32_t budget : budgets) {
    for (; next < budget; ++next) sum += term(next);
    curve.add_budget_blocks(budget);
    curve.add_coverage(budget == blocks ? 1.0 : sum / total);
  }
  return curve;
}

}  // namespace

uint64_t BlocksOf(uint64_t tokens, uint64_t block_tokens) {
  return tokens / block_tokens + (tokens % block_tokens != 0 ? 1 : 0);
}

std::vector<uint32_t> CoverageGrid(uint32_t blocks) {
  std::vector<uint32_t> grid;
  for (uint64_t power = 1; power < blocks; power *= 2) {
    grid.push_back(static_cast<uint32_t>(power));
    const uint64_t between = power + power / 2;
    if (power > 1 && between < blocks) grid.push_back(static_cast<uint32_t>(between));
  }
  grid.push_back(blocks);
  return grid;
}

absl::Status CheckCurve(const v1::CoverageCurve& curve, uint32_t blocks) {
  const int points = curve.budget_blocks_size();
  if (points != curve.coverage_size()) {
    return absl::InvalidArgumentError(absl::StrCat("has ", points, " budgets but ",
                                                   curve.coverage_size(),
                                                   " coverages; give one coverage a budget"));
  }
  if (points == 0) return absl::OkStatus();
  for (int i = 0; i < points; ++i) {
    const double value = curve.coverage(i);
    if (!(value >= 0.0 && value <= 1.0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("coverage[", i, "] is ", value, "; it must be in [0, 1]"));
    }
    if (i > 0 && curve.budget_blocks(i) <= curve.budget_blocks(i - 1)) {
      return absl::InvalidArgumentError(absl::StrCat("budget_blocks[", i, "] is ",
                                                     curve.budget_blocks(i),
                                                     "; budgets must increase strictly"));
    }
    if (i > 0 && value < curve.coverage(i - 1) - kTolerance) {
      return absl::InvalidArgumentError(absl::StrCat("coverage[", i, "] is ", value, ", below ",
                                                     curve.coverage(i - 1),
                                                     " before it; coverage must not decrease"));
    }
  }
  if (curve.budget_blocks(0) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("first budget is ", curve.budget_blocks(0), "; it must be 1"));
  }
  const uint32_t last = curve.budget_blocks(points - 1);
  if (last > blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("last budget is ", last, ", above the sequence's ", blocks, " blocks"));
  }
  if (blocks == 1) {
    if (curve.coverage(0) < 1.0 - kTolerance) {
      return absl::InvalidArgumentError(
          absl::StrCat("coverage of a one-block sequence is ", curve.coverage(0), "; it is 1"));
    }
    return absl::OkStatus();
  }
  if (curve.coverage(0) > kTolerance) {
    return absl::InvalidArgumentError(
        absl::StrCat("coverage at budget 1 is ", curve.coverage(0),
                     "; a query that attends to its own block only covers nothing, so it is 0"));
  }
  if (last == blocks && curve.coverage(points - 1) < 1.0 - kTolerance) {
    return absl::InvalidArgumentError(absl::StrCat("coverage at budget ", blocks,
                                                   " (all blocks) is ", curve.coverage(points - 1),
                                                   "; it is 1"));
  }
  return absl::OkStatus();
}

double CoverageAt(const v1::CoverageCurve& curve, uint32_t blocks, uint32_t budget) {
  if (budget >= blocks) return 1.0;
  if (curve.budget_blocks_size() == 0) return CoverageAt(DefaultCurve(blocks), blocks, budget);
  const auto& budgets = curve.budget_blocks();
  const int above =
      static_cast<int>(std::upper_bound(budgets.begin(), budgets.end(), budget) - budgets.begin());
  if (above == 0) return 0.0;
  const double x0 = budgets[above - 1];
  const double y0 = curve.coverage(above - 1);
  const bool inside = above < budgets.size();
  const double x1 = inside ? budgets[above] : blocks;
  const double y1 = inside ? curve.coverage(above) : 1.0;
  return y0 + (y1 - y0) * ((budget - x0) / (x1 - x0));
}

v1::CoverageCurve PowerCurve(uint32_t blocks, double alpha) {
  return CurveOnPoints(CoverageGrid(blocks), alpha);
}

v1::CoverageCurve DensePowerCurve(uint32_t blocks, double alpha) {
  std::vector<uint32_t> budgets(blocks);
  for (uint32_t k = 0; k < blocks; ++k) budgets[k] = k + 1;
  return CurveOnPoints(budgets, alpha);
}

v1::CoverageCurve DefaultCurve(uint32_t blocks) { return PowerCurve(blocks, 1.0); }

}  // namespace sparsebalance::planner
