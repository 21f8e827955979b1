#include "coordinator/planner/latency_fit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/validation.h"

namespace sparsebalance::planner {
namespace {

absl::Status CheckPoint(const v1::ProfilePoint& p, size_t index) {
  const std::string path = absl::StrCat("points[", index, "]");
  if (p.tokens() == 0) return FieldError(path + ".tokens", "0", "must be at least 1");
  if (p.budget_blocks() == 0) return FieldError(path + ".budget_blocks", "0", "must be at least 1");
  const double total = p.forward_ms() + p.backward_ms();
  if (!(p.forward_ms() >= 0 && p.backward_ms() >= 0 && total > 0 && std::isfinite(total))) {
    return FieldError(path, absl::StrCat(p.forward_ms(), " + ", p.backward_ms(), " ms"),
                      "forward and backward must be finite, not negative and not both 0");
  }
  return absl::OkStatus();
}

}  // namespace

NormalEquations::Vector SequenceFeatures(uint64_t tokens, double block_pairs,
                                         uint32_t block_tokens) {
  const auto n = static_cast<double>(tokens);
  const double block = block_tokens;
  return {0.0, n, block_pairs * block * block,
          n * static_cast<double>(BlocksOf(tokens, block_tokens))};
}

absl::StatusOr<LatencyFit> FitLatency(absl::Span<const v1::ProfilePoint> points,
                                      uint32_t block_tokens) {
  if (block_tokens == 0) return FieldError("block_tokens", "0", "must be at least 1");
  if (points.empty()) return FieldError("points", "empty", "a fit needs measurements");
  NormalEquations equations;
  std::vector<NormalEquations::Vector> rows;
  rows.reserve(points.size());
  double forward = 0;
  double total = 0;
  LatencyFit fit;
  uint64_t min_tokens = points[0].tokens();
  uint64_t max_tokens = 0;
  uint32_t min_budget = points[0].budget_blocks();
  uint32_t max_budget = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const v1::ProfilePoint& p = points[i];
    if (absl::Status s = CheckPoint(p, i); !s.ok()) return s;
    const auto pairs = static_cast<double>(
        BlockPairs(static_cast<int64_t>(BlocksOf(p.tokens(), block_tokens)), p.budget_blocks()));
    rows.push_back(SequenceFeatures(p.tokens(), pairs, block_tokens));
    rows.back()[0] = 1.0;
    const double measured = p.forward_ms() + p.backward_ms();
    equations.Add(rows.back(), measured, 1 / (measured * measured));
    // Every point counts the same here too, short ones as much as long ones.
    forward += p.forward_ms() / measured;
    total += 1;
    min_tokens = std::min(min_tokens, p.tokens());
    max_tokens = std::max(max_tokens, p.tokens());
    min_budget = std::min(min_budget, p.budget_blocks());
    max_budget = std::max(max_budget, p.budget_blocks());
  }
  const NormalEquations::Vector c = SolveNonNegative(equations);
  for (size_t i = 0; i < points.size(); ++i) {
    const double measured = points[i].forward_ms() + points[i].backward_ms();
    double fitted = 0;
    for (size_t j = 0; j < c.size(); ++j) fitted += c[j] * rows[i][j];
    fit.mean_relative_error += std::fabs(fitted - measured) / measured;
  }
  fit.mean_relative_error /= static_cast<double>(points.size());
  fit.model.set_constant_ms(c[0]);
  fit.model.set_per_token_ms(c[1]);
  fit.model.set_per_pair_ms(c[2]);
  fit.model.set_router_ms_per_token_block(c[3]);
  fit.model.set_forward_fraction(std::clamp(forward / total, 0.01, 0.99));
  fit.model.set_block_tokens(block_tokens);
  fit.model.set_min_tokens(min_tokens);
  fit.model.set_max_tokens(max_tokens);
  fit.model.set_min_budget_blocks(min_budget);
  fit.model.set_max_budget_blocks(max_budget);
  return fit;
}

}  // namespace sparsebalance::planner
