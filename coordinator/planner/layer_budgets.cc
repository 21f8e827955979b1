#include "coordinator/planner/layer_budgets.h"

#include <algorithm>

#include "coordinator/planner/latency_model.h"

namespace sparsebalance::planner {
namespace {

struct Corner {
  int32_t budget;
  int64_t pairs, coverage;
};

// Whether `middle` lies on or below the line from `left` to `right`.
bool Below(const Corner& left, const Corner& middle, const Corner& right) {
  return Int128{middle.coverage - left.coverage} * (right.pairs - left.pairs) <=
         Int128{right.coverage - left.coverage} * (middle.pairs - left.pairs);
}

// The lowest budget in [low, high] that passes, where high does and passing never stops once begun.
template <class Passes>
int32_t LowestThat(int32_t low, int32_t high, const Passes& passes) {
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (passes(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace

LayerBudgets::LayerBudgets(const google::protobuf::RepeatedPtrField<v1::CoverageCurve>& curves,
                           const Limits& limits)
    : limits_(limits), layers_(curves.size()), stages_(limits.stages) {
  int64_t base_sum = 0;
  for (int l = 0; l < curves.size(); ++l) {
    Layer& layer = layers_[l];
    AppendPoints(curves[l], limits.blocks, layer.points);
    const int64_t base = Interpolate(layer.points, limits.base);
    base_sum += base;
    layer.low = LowestThat(limits.min, limits.base, [&](int32_t k) {
      return Int128{Interpolate(layer.points, k)} * kFullCoverage >= Int128{limits.keep} * base;
    });
  }
  base_coverage_ = base_sum / curves.size();

  const int each = curves.size() / limits.stages;
  const int more = curves.size() % limits.stages;
  int next = 0;
  for (int s = 0; s < limits.stages; ++s) {
    Stage& stage = stages_[s];
    stage.first = next;
    stage.count = each + (s < more ? 1 : 0);
    next += stage.count;
    for (int l = stage.first; l < next; ++l) {
      const int32_t low = layers_[l].low;
      stage.low_pairs += PairsAt(low);
      stage.low_coverage += Interpolate(layers_[l].points, low);
      stage.highest_low = std::max(stage.highest_low, low);
      AddRises(l, stage);
    }
    std::sort(stage.rises.begin(), stage.rises.end(), [](const Rise& a, const Rise& b) {
      if (a.gain != b.gain) return a.gain > b.gain;
      return a.layer != b.layer ? a.layer < b.layer : a.from < b.from;
    });
    stage.pairs.push_back(stage.low_pairs);
    stage.coverage.push_back(stage.low_coverage);
    for (const Rise& rise : stage.rises) {
      stage.pairs.push_back(stage.pairs.back() + rise.pairs);
      stage.coverage.push_back(stage.coverage.back() + rise.coverage);
    }
    least_ = std::max(least_, LowestThat(limits.min, limits.base, [&](int32_t k) {
                        return stage.count * PairsAt(k) >= stage.low_pairs;
                      }));
  }
}

void LayerBudgets::AddRises(int layer, Stage& stage) const {
  std::vector<Corner> hull;
  const std::vector<CurvePoint>& points = layers_[layer].points;
  const auto add = [&](int32_t budget) {
    const Corner corner{budget, PairsAt(budget), Interpolate(points, budget)};
    if (!hull.empty() && corner.coverage <= hull.back().coverage) return;
    while (hull.size() >= 2 && Below(hull[hull.size() - 2], hull.back(), corner)) hull.pop_back();
    hull.push_back(corner);
  };
  const int32_t low = layers_[layer].low;
  add(low);
  for (const CurvePoint& point : points) {
    if (point.budget > low && point.budget < limits_.max) add(point.budget);
  }
  if (limits_.max > low) add(limits_.max);
  for (size_t c = 1; c < hull.size(); ++c) {
    Rise rise;
    rise.layer = layer;
    rise.from = hull[c - 1].budget;
    rise.to = hull[c].budget;
    rise.pairs = hull[c].pairs - hull[c - 1].pairs;
    rise.coverage = hull[c].coverage - hull[c - 1].coverage;
    // One correctly rounded division: the same on every machine.
    rise.gain = static_cast<double>(rise.coverage) / static_cast<double>(rise.pairs);
    stage.rises.push_back(rise);
  }
}

int64_t LayerBudgets::PairsAt(int32_t budget) const { return BlockPairs(limits_.blocks, budget); }

int64_t LayerBudgets::UniformCoverage(const Stage& stage, int32_t budget) const {
  int64_t sum = 0;
  for (int l = stage.first; l < stage.first + stage.count; ++l) {
    sum += Interpolate(layers_[l].points, budget);
  }
  return sum;
}

int64_t LayerBudgets::Deal(const Stage& stage, int32_t budget, uint32_t* out) const {
  const int64_t limit = stage.count * PairsAt(budget);
  const auto taken = static_cast<size_t>(
      std::upper_bound(stage.pairs.begin(), stage.pairs.end(), limit) - stage.pairs.begin() - 1);
  int64_t coverage = stage.coverage[taken];
  int32_t part = 0;  // budget that the next rise gets to
  if (taken < stage.rises.size()) {
    const Rise& next = stage.rises[taken];
    const int64_t most = limit - stage.pairs[taken] + PairsAt(next.from);
    part = LowestThat(next.from, next.to, [&](int32_t k) { return PairsAt(k + 1) > most; });
    const std::vector<CurvePoint>& points = layers_[next.layer].points;
    coverage += Interpolate(points, part) - Interpolate(points, next.from);
  }
  if (budget >= stage.highest_low) {
    const int64_t uniform = UniformCoverage(stage, budget);
    if (uniform >= coverage) {
      if (out != nullptr) std::fill_n(out, stage.count, static_cast<uint32_t>(budget));
      return uniform;
    }
  }
  if (out == nullptr) return coverage;
  for (int l = 0; l < stage.count; ++l) {
    out[l] = static_cast<uint32_t>(layers_[stage.first + l].low);
  }
  for (size_t r = 0; r < taken; ++r) {
    out[stage.rises[r].layer - stage.first] = static_cast<uint32_t>(stage.rises[r].to);
  }
  if (part > 0) out[stage.rises[taken].layer - stage.first] = static_cast<uint32_t>(part);
  return coverage;
}

std::vector<uint32_t> LayerBudgets::At(int32_t budget) const {
  std::vector<uint32_t> budgets(layers_.size());
  for (const Stage& stage : stages_) Deal(stage, budget, budgets.data() + stage.first);
  return budgets;
}

std::vector<CurvePoint> LayerBudgets::Curve() const {
  std::vector<CurvePoint> curve;
  curve.reserve(limits_.max - least_ + 1);
  for (int32_t k = least_; k <= limits_.max; ++k) {
    int64_t sum = 0;
    for (const Stage& stage : stages_) sum += Deal(stage, k, nullptr);
    curve.push_back({k, sum / static_cast<int64_t>(layers_.size())});
  }
  return curve;
}

std::vector<CurvePoint> LayerBudgets::BoundingCurve() const {
  std::vector<CurvePoint> curve;
  curve.reserve(limits_.max - least_ + 1);
  const auto layers = static_cast<int64_t>(layers_.size());
  for (int32_t k = least_; k <= limits_.max; ++k) {
    int64_t sum = 0;
    for (const Stage& stage : stages_) {
      const int64_t limit = stage.count * PairsAt(k);
      const auto taken =
          static_cast<size_t>(std::upper_bound(stage.pairs.begin(), stage.pairs.end(), limit) -
                              stage.pairs.begin() - 1);
      sum += stage.coverage[taken];
      if (taken < stage.rises.size()) {
        const Rise& next = stage.rises[taken];
        sum += static_cast<int64_t>(Int128{next.coverage} * (limit - stage.pairs[taken]) /
                                    next.pairs) +
               1;
      }
    }
    curve.push_back({k, std::min(kFullCoverage, (sum + layers - 1) / layers)});
  }
  return curve;
}

std::vector<CurvePoint> LayerBudgets::UniformCurve() const {
  std::vector<int32_t> budgets;
  for (const Layer& layer : layers_) {
    for (const CurvePoint& point : layer.points) budgets.push_back(point.budget);
  }
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  std::vector<CurvePoint> curve;
  curve.reserve(budgets.size());
  for (const int32_t k : budgets) {
    int64_t sum = 0;
    for (const Stage& stage : stages_) sum += UniformCoverage(stage, k);
    curve.push_back({k, sum / static_cast<int64_t>(layers_.size())});
  }
  return curve;
}

bool LayerBudgets::Allows(absl::Span<const uint32_t> layer_budgets, int32_t budget) const {
  if (layer_budgets.size() != layers_.size()) return false;
  for (const Stage& stage : stages_) {
    int64_t pairs = 0;
    for (int l = stage.first; l < stage.first + stage.count; ++l) {
      const uint32_t k = layer_budgets[l];
      if (k < static_cast<uint32_t>(layers_[l].low) || k > static_cast<uint32_t>(limits_.max)) {
        return false;
      }
      pairs += PairsAt(static_cast<int32_t>(k));
    }
    if (pairs > stage.count * PairsAt(budget)) return false;
  }
  return true;
}

}  // namespace sparsebalance::planner
