// What a policy decides, and how long it takes by the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/planner/problem.h"
#include "coordinator/planner/schedule.h"

namespace sparsebalance::planner {

// Sequences by index. An empty micro-batch is a zero-weight one.
using MicroBatchItems = std::vector<int32_t>;
// In the order of execution.
using RankItems = std::vector<MicroBatchItems>;
using Batching = std::vector<RankItems>;  // [rank]

struct Solution {
  Batching batching;
  std::vector<int32_t> budgets;  // [sequence]
  v1::FallbackReason fallback = v1::FALLBACK_REASON_NONE;
  std::string fallback_detail;
};

// Times under given budgets. Keeps buffers; not thread-safe.
class Evaluator {
 public:
  explicit Evaluator(const Problem& problem)
      : problem_(problem), schedule_(problem.stages(), problem.predictor().forward_fraction()) {}

  // What the two that follow go by.
  void SetBudgets(const std::vector<int32_t>& budgets);
  // One stage, rank's speed included.
  int64_t MicroBatchNs(int rank, const MicroBatchItems& items) const;
  // Through the whole schedule; 0 for an empty rank.
  int64_t RankNs(int rank, const RankItems& items);

  // Slowest rank, without the step's constant. Sets the budgets.
  int64_t StepNs(const Batching& batching, const std::vector<int32_t>& budgets);

  // Span of micro-batches whose times (rank's speed included) are known.
  int64_t SpanNs(absl::Span<const int64_t> micro_batches) { return schedule_.Span(micro_batches); }

 private:
  const Problem& problem_;
  UniformSchedule schedule_;
  std::vector<int64_t> times_;
  std::vector<int64_t> time_;  // [sequence] at factor 1
};

int64_t CoverageSum(const Problem& problem, const std::vector<int32_t>& budgets);

}  // namespace sparsebalance::planner
