// What the steps of one job have added up to since the process answers for it.
//
// Thread-safe; needs no lock of the job, so that a scrape holds up nobody.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "prometheus/client_metric.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

class JobMeter {
 public:
  // Reasons by their number in NoPlanReason; NONE stands for workers that do not say.
  static constexpr size_t kReasons = v1::NoPlanReason_ARRAYSIZE;

  struct Reading {
    std::array<double, kReasons> fallback_steps{};
    double tokens = 0;
    double sequences = 0;
    double straggler_seconds = 0;  // over ranks
    double bubble_seconds = 0;     // over ranks
    double saved_seconds = 0;
    double guard_raises = 0;
    prometheus::ClientMetric::Histogram step_seconds;
    prometheus::ClientMetric::Histogram rank_compute_ratio;
    prometheus::ClientMetric::Histogram budget_blocks;
  };

  JobMeter();

  // A step that all ranks have reported: its figures, and each rank's compute_ms.
  void StepFinished(const v1::StepStatus& step, absl::Span<const double> compute_ms);
  // The plan that a finished step was trained by.
  void PlanUsed(const v1::Plan& plan);

  Reading Read() const;

 private:
  std::array<prometheus::Counter, kReasons> fallback_steps_;
  prometheus::Counter tokens_;
  prometheus::Counter sequences_;
  prometheus::Counter straggler_seconds_;
  prometheus::Counter bubble_seconds_;
  prometheus::Counter saved_seconds_;
  prometheus::Counter guard_raises_;
  prometheus::Histogram step_seconds_;
  prometheus::Histogram rank_compute_ratio_;
  prometheus::Histogram budget_blocks_;
};

}  // namespace sparsebalance
