// Puts the reports of single ranks together into finished steps.
//
// Not thread-safe: the job's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/service/job_spec.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

class StepHistory {
 public:
  StepHistory(RankLayout layout, size_t kept);

  // Whether the report is new. Retries bring the same report again; it counts once.
  bool IsNew(const v1::RankTelemetry& report) const;

  struct FinishedStep {
    v1::StepStatus status;           // as measured, for the caller to add the plan's figures
    std::vector<double> compute_ms;  // of each rank, in no order
  };
  // Takes a new report. The last one of a step completes it: returns its figures, whose status is
  // then to be handed to Keep.
  std::optional<FinishedStep> Add(const v1::RankTelemetry& report);
  void Keep(v1::StepStatus finished);

  // Training goes on at this step: reports of it and later ones are news again.
  void RestartAt(uint64_t next_step);

  const std::deque<v1::StepStatus>& finished() const { return finished_; }  // oldest first
  uint64_t steps_reported() const { return steps_reported_; }
  uint64_t fallback_steps() const { return fallback_steps_; }
  // Highest step that the rank reported; 0 where none.
  uint64_t LastStep(uint32_t rank) const;

 private:
  struct Pending {
    std::set<uint32_t> ranks;
    v1::StepStatus status;
    std::vector<double> compute_ms;
    double slowest_compute_ms = -1;
    double loss_sum = 0;
    uint64_t supervised_tokens = 0;
    std::set<uint64_t> sequence_ids;
  };

  const RankLayout layout_;
  const size_t kept_;
  std::map<uint64_t, Pending> pending_;  // by step
  std::set<uint64_t> completed_;         // steps, as many as are kept
  std::deque<v1::StepStatus> finished_;
  uint64_t forgotten_below_ = 0;  // reports of earlier steps are too old
  uint64_t steps_reported_ = 0;
  uint64_t fallback_steps_ = 0;
  std::vector<uint64_t> last_step_;  // by rank
};

}  // namespace sparsebalance
