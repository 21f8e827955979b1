#include "coordinator/planner/envelope.h"

#include <algorithm>
#include <limits>

namespace sparsebalance::planner {
namespace {

struct Corner {
  int32_t budget;
  int64_t time, coverage;
};

// Whether `middle` lies on or below the line from `left` to `right`.
bool Below(const Corner& left, const Corner& middle, const Corner& right) {
  return Int128{middle.coverage - left.coverage} * (right.time - left.time) <=
         Int128{right.coverage - left.coverage} * (middle.time - left.time);
}

}  // namespace

Envelopes::Envelopes(const Problem& problem, Kind kind) {
  if (problem.fixed_budgets()) {
    begin_.assign(problem.num_sequences() + 1, 0);
    lowest_coverage_sum_ = highest_coverage_sum_ = problem.base_coverage_sum();
    return;
  }
  std::vector<Corner> hull;
  begin_.reserve(problem.num_sequences() + 1);
  for (int i = 0; i < problem.num_sequences(); ++i) {
    const ProblemSequence& s = problem.sequence(i);
    begin_.push_back(static_cast<uint32_t>(segments_.size()));
    const absl::Span<const CurvePoint> curve =
        kind == Kind::kBound ? problem.BoundingCurve(i) : problem.Curve(i);
    if (s.low == s.high) {
      const int64_t coverage = problem.Coverage(i, s.low);
      lowest_coverage_sum_ += coverage;
      highest_coverage_sum_ += coverage;
      continue;
    }
    hull.clear();
    const auto add = [&](int32_t budget) {
      const Corner corner{budget, problem.TimeNs(i, budget),
                          budget >= s.blocks ? kFullCoverage : Interpolate(curve, budget)};
      if (!hull.empty() && corner.coverage <= hull.back().coverage) return;
      while (hull.size() >= 2 && Below(hull[hull.size() - 2], hull.back(), corner)) hull.pop_back();
      hull.push_back(corner);
    };
    add(s.low);
    for (const CurvePoint& point : curve) {
      if (point.budget > s.low && point.budget < s.high) add(point.budget);
    }
    if (s.high > s.low) add(s.high);
    lowest_coverage_sum_ += hull.front().coverage;
    highest_coverage_sum_ += hull.back().coverage;
    for (size_t c = 1; c < hull.size(); ++c) {
      const int64_t time = hull[c].time - hull[c - 1].time;
      const int64_t coverage = hull[c].coverage - hull[c - 1].coverage;
      const double gain = time > 0 ? static_cast<double>(coverage) / static_cast<double>(time)
                                   : std::numeric_limits<double>::infinity();
      segments_.push_back({i, hull[c - 1].budget, hull[c].budget, time, coverage, gain});
    }
  }
  begin_.push_back(static_cast<uint32_t>(segments_.size()));
  by_steepness_ = segments_;
  std::sort(by_steepness_.begin(), by_steepness_.end(), SteeperThan);
}

}  // namespace sparsebalance::planner
