// Learns the latency model of a running job from what its ranks report.
//
// Three things are learned, at three speeds:
//   - a speed for every rank: the median over its last steps of measured over modelled compute. A
//     rank that turns slow is followed in a few steps, one outlier is not followed at all. What is
//     told of it is shrunk towards no difference by how much the samples scatter (Breiman's
//     non-negative garrote): a plan that chases noise is worse than one that ignores it.
//   - the shape of the model (constant, per token, per pair, router): recursive least squares with
//     forgetting over all micro-batches, each divided by its rank's speed, held non-negative and
//     tied to the starting model in directions that the data say nothing about.
//   - the step's constant and the forward share: medians over the last steps.
// The median speed over ranks is part of the model that is given out; rank factors are relative to
// it, so a profile from a slower machine is corrected after one step.
//
// Not thread-safe. Deterministic: the same reports in the same order give the same model.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/nnls.h"
#include "sparsebalance/v1/plan.pb.h"
#include "sparsebalance/v1/profile.pb.h"
#include "sparsebalance/v1/telemetry.pb.h"
#include "sparsebalance/v1/types.pb.h"

namespace sparsebalance::planner {

struct EstimatorOptions {
  uint32_t block_tokens = 256;  // >= 1
  v1::Parallelism parallelism;  // maps global ranks to data-parallel indices
};

class LatencyEstimator {
 public:
  // Starts from the profile's model, else from DefaultLatencyModel().
  explicit LatencyEstimator(EstimatorOptions options,
                            const std::optional<v1::LatencyProfile>& profile = std::nullopt);

  // Samples of one rank and step; reports that are not finite or name a rank that the job does not
  // have are passed over. Ranks may report in any order; a step's constant is learned once all its
  // ranks have reported.
  void Observe(const v1::RankTelemetry& telemetry);

  // Never negative and never falling in the budget.
  v1::LatencyModel model() const;
  // Data-parallel indices whose factor differs from 1, by index. The slowest of a replica's ranks
  // speaks for it.
  std::vector<v1::RankFactor> rank_factors() const;
  // Of a global rank, its time over the median rank's for the same work; 1 before it has reported.
  double time_factor(uint32_t rank) const;
  // Of all ranks. Worked out once for all that ask between two reports.
  const std::vector<double>& time_factors() const;
  // "learned" after the first report, before that "profile" or "default".
  std::string source() const;
  uint64_t reports() const { return reports_; }

  // All that was learned, some hundred bytes and 600 a rank; versioned, the same on any machine.
  std::string Serialize() const;
  // INVALID_ARGUMENT where the bytes are damaged, from another version or another job's shape; the
  // estimator is then unchanged.
  absl::Status Restore(std::string_view bytes);

 private:
  using Features = NormalEquations::Vector;
  struct StepSample {
    Features features{};
    double measured_ms = 0;
  };
  // A rank's part of a step that not all ranks have reported.
  struct PendingRank {
    std::vector<Features> micro_batches;
    double step_ms = 0;
  };
  using PendingStep = std::map<uint32_t, PendingRank>;

  uint32_t WorldSize() const;
  double Modelled(const Features& features) const;
  // Measured over what the shape predicts, by step, oldest first.
  std::vector<double> RatiosOver(const Features& shape, uint32_t rank) const;
  // Median of these, over the last few steps where they tell of a change; 0 for a rank that has not
  // reported.
  double SpeedOver(const Features& shape, uint32_t rank) const;
  // Standard deviation of one step's ratio around its rank's speed, relative, over all ranks.
  double Scatter() const;
  double Speed(uint32_t rank) const { return SpeedOver(shape_, rank); }
  // Median over ranks; 1 before any has reported.
  double CommonSpeed() const;
  // The same by some of them, evenly spread, where there are many: it is asked for with every
  // report.
  double SampledSpeedOver(const Features& shape) const;
  double FactorOf(uint32_t rank, double speed, double common, double scatter) const;
  void Learn(uint32_t rank, const std::vector<Features>& rows, const std::vector<double>& times);
  void FinishStep(const PendingStep& step);

  EstimatorOptions options_;
  bool from_profile_;
  v1::LatencyModel start_;
  NormalEquations prior_;
  NormalEquations data_;
  Features start_shape_{};
  Features shape_{};
  uint64_t reports_ = 0;
  std::vector<std::deque<StepSample>> recent_;  // [global rank]
  std::deque<double> forward_shares_;
  std::deque<double> step_constants_;
  uint64_t min_tokens_ = 0, max_tokens_ = 0;
  uint32_t min_budget_ = 0, max_budget_ = 0;
  std::map<uint64_t, PendingStep> pending_;  // by step
  mutable std::vector<double> factors_;      // empty: to be worked out
};

}  // namespace sparsebalance::planner
