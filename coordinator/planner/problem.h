// A plan request in integers: nanoseconds and coverage in units of 1e-9.
//
// Every policy decides on a Problem and nothing else. Sequences are kept by ascending id and named
// by their index, so that a tie broken by index is a tie broken by id.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/planner/curve_points.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/layer_budgets.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

struct ProblemSequence {
  uint64_t id;
  int64_t tokens;
  int64_t supervised_tokens;
  int32_t blocks;
  // Budgets a plan may report: low <= base <= high. `low` keeps the guard; all three equal where
  // the job fixes budgets. A sequence of fewer blocks than min_budget_blocks has them all at
  // min_budget_blocks and attends to all that it has.
  int32_t base, low, high;
  int64_t base_coverage;  // 1e-9, with the base budget in every layer
  Int128 fixed_time;      // LatencyPredictor::FixedPart
  uint32_t curve_begin;   // of its points in Problem's pool
  uint32_t curve_end;
  int32_t layers;  // index of its LayerBudgets; -1: one budget for all layers
};

struct ProblemRank {
  int64_t time_factor;  // fixed point
  int64_t cap_tokens;   // of one micro-batch
};

class Problem {
 public:
  // The request must have passed ValidateRequest (validation.h). SequenceRejected where a sequence
  // is longer than every rank's cap.
  static absl::StatusOr<Problem> Create(const v1::PlanRequest& request);

  int num_sequences() const { return static_cast<int>(sequences_.size()); }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  int stages() const { return stages_; }
  const ProblemSequence& sequence(int i) const { return sequences_[i]; }
  int64_t padded_tokens(int i) const { return padded_tokens_[i]; }
  const std::vector<int64_t>& padded_tokens() const { return padded_tokens_; }
  const ProblemRank& rank(int r) const { return ranks_[r]; }
  const LatencyPredictor& predictor() const { return predictor_; }
  // Indices in the order of the request.
  const std::vector<int32_t>& arrival_order() const { return arrival_order_; }
  std::vector<int32_t> AllSequences() const;
  std::vector<int32_t> BaseBudgets() const;

  // One sequence without its micro-batch's constant, on a rank of factor 1.
  int64_t TimeNs(int i, int32_t budget) const {
    const ProblemSequence& s = sequences_[i];
    return predictor_.TimeNs(s.fixed_time, s.blocks, budget);
  }
  int64_t Coverage(int i, int32_t budget) const {  // 1e-9
    const ProblemSequence& s = sequences_[i];
    if (budget >= s.blocks) return kFullCoverage;
    if (budget == s.base && s.layers < 0) return s.base_coverage;
    return Interpolate(Curve(i), budget);
  }
  absl::Span<const CurvePoint> Curve(int i) const {
    return absl::MakeConstSpan(curve_points_)
        .subspan(sequences_[i].curve_begin, sequences_[i].curve_end - sequences_[i].curve_begin);
  }
  // The least upper bound known of coverage at each budget: the curve itself, unless budgets are
  // dealt over layers.
  absl::Span<const CurvePoint> BoundingCurve(int i) const {
    const int32_t layers = sequences_[i].layers;
    return layers < 0 ? Curve(i) : absl::MakeConstSpan(layer_bounds_[layers]);
  }
  // nullptr: one budget for all layers. Otherwise budgets are those that would make the same work
  // in every layer, and coverage is that of the work dealt well.
  const LayerBudgets* Layers(int i) const {
    const int32_t layers = sequences_[i].layers;
    return layers < 0 ? nullptr : &layer_budgets_[layers];
  }

  // A micro-batch that holds one token of weight 0.
  int64_t zero_weight_ns() const { return zero_weight_ns_; }
  int64_t OnRank(int r, int64_t ns) const { return MulFixed(ns, ranks_[r].time_factor); }

  // 0: free. The search may turn a common but free count into a fixed one.
  int fixed_count() const { return fixed_count_; }
  bool equal_count() const { return equal_count_; }
  int micro_batch_size() const { return micro_batch_size_; }
  v1::PaperAnchor paper_anchor() const { return paper_anchor_; }
  v1::SearchEffort search_effort() const { return search_effort_; }
  // Least sum of coverage over all sequences that a plan must keep; 0 where only the guard counts.
  int64_t floor_sum() const { return floor_sum_; }
  // Every budget is its base: no other is allowed.
  bool fixed_budgets() const { return fixed_budgets_; }
  uint64_t max_deferred_steps() const { return max_deferred_steps_; }
  int64_t base_coverage_sum() const { return base_coverage_sum_; }

 private:
  explicit Problem(LatencyPredictor predictor) : predictor_(predictor) {}
  // Adds the curve of a sequence and its budgets between those of the job.
  class SequenceReader;

  LatencyPredictor predictor_;
  std::vector<ProblemSequence> sequences_;
  std::vector<int64_t> padded_tokens_;  // [sequence]: packing looks at little else
  std::vector<CurvePoint> curve_points_;
  std::vector<LayerBudgets> layer_budgets_;
  std::vector<std::vector<CurvePoint>> layer_bounds_;
  std::vector<ProblemRank> ranks_;
  std::vector<int32_t> arrival_order_;
  int stages_ = 1;
  int fixed_count_ = 0;
  bool equal_count_ = false;
  int micro_batch_size_ = 0;
  v1::PaperAnchor paper_anchor_ = v1::PAPER_ANCHOR_MEAN;
  v1::SearchEffort search_effort_ = v1::SEARCH_EFFORT_NORMAL;
  int64_t zero_weight_ns_ = 0;
  int64_t floor_sum_ = 0;
  int64_t base_coverage_sum_ = 0;
  bool fixed_budgets_ = false;
  uint64_t max_deferred_steps_ = 0;
};

}  // namespace sparsebalance::planner
