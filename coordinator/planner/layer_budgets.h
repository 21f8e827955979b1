// One sequence's budget dealt over the layers by marginal coverage.
//
// Layers differ in how much coverage a block more gives them. A uniform budget of k blocks makes
// layers * pairs(N, k) block pairs on a pipeline stage; within that, every layer starts at the
// lowest budget that keeps the coverage guard by its own curve, and the stage's layers rise by
// coverage gained over pairs (on the upper concave envelope of each layer's curve) until the pairs
// are used up. Work stays within that of the uniform budget on every stage, so the time of a
// micro-batch stays the same on all of them; coverage is the mean over all layers and never below
// that of the uniform budget, where that keeps the guards.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/curve_points.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

class LayerBudgets {
 public:
  struct Limits {
    int32_t blocks;  // N, above min_budget
    int stages;      // layers are dealt over them in equal consecutive runs, rest to the first ones
    int32_t base, min, max;  // budgets, min <= base <= max <= blocks
    int64_t keep;            // share of the base budget's coverage that the guard asks for, 1e-9
  };

  // At least one curve a stage, each with CheckCurve passed.
  LayerBudgets(const google::protobuf::RepeatedPtrField<v1::CoverageCurve>& curves,
               const Limits& limits);

  int layers() const { return static_cast<int>(layers_.size()); }
  // The lowest uniform budget whose work is enough for every layer's guard; <= base.
  int32_t least() const { return least_; }
  // Mean over layers with every layer at the base budget, 1e-9.
  int64_t base_coverage() const { return base_coverage_; }

  // Budgets of all layers for the work of a uniform budget in [least, max].
  std::vector<uint32_t> At(int32_t budget) const;
  // Mean coverage of those budgets: at every budget from least to max, non-decreasing.
  std::vector<CurvePoint> Curve() const;
  // What no choice of budgets within the same work and guards can exceed: budgets that need not be
  // whole numbers.
  std::vector<CurvePoint> BoundingCurve() const;
  // Mean coverage where all layers have the same budget, at every point of any layer's curve.
  std::vector<CurvePoint> UniformCurve() const;

  // Whether these are whole and legal: as many as layers, each between min and max and within its
  // guard, no stage with more pairs than under the uniform budget.
  bool Allows(absl::Span<const uint32_t> layer_budgets, int32_t budget) const;

 private:
  struct Layer {
    std::vector<CurvePoint> points;
    int32_t low = 1;
  };
  // A rise of one layer along its envelope.
  struct Rise {
    int32_t layer;
    int32_t from, to;
    int64_t pairs, coverage;  // gained by it
    double gain;              // coverage / pairs
  };
  struct Stage {
    int first = 0;
    int count = 0;
    int64_t low_pairs = 0;
    int64_t low_coverage = 0;  // sum over layers
    int32_t highest_low = 1;
    std::vector<Rise> rises;  // by falling gain
    // [rise], one more at the end: sums of all rises before it, with the lows.
    std::vector<int64_t> pairs, coverage;
  };

  void AddRises(int layer, Stage& stage) const;
  int64_t PairsAt(int32_t budget) const;
  // Sum of coverage over the stage's layers; `out` takes their budgets where it is not null.
  int64_t Deal(const Stage& stage, int32_t budget, uint32_t* out) const;
  int64_t UniformCoverage(const Stage& stage, int32_t budget) const;

  Limits limits_;
  std::vector<Layer> layers_;
  std::vector<Stage> stages_;
  int32_t least_ = 1;
  int64_t base_coverage_ = 0;
};

}  // namespace sparsebalance::planner
