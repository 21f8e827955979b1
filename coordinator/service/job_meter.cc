#include "coordinator/service/job_meter.h"

#include <algorithm>

namespace sparsebalance {
namespace {

using Bounds = prometheus::Histogram::BucketBoundaries;

// Few buckets: each is a series of every job.
const Bounds kJobStepSeconds = {0.05, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
const Bounds kComputeRatio = {0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2};
const Bounds kBudgetBlocks = {1, 4, 8, 16, 32, 64, 128, 512};

double Value(const prometheus::Counter& counter) { return counter.Collect().counter.value; }

}  // namespace

JobMeter::JobMeter()
    : step_seconds_(kJobStepSeconds),
      rank_compute_ratio_(kComputeRatio),
      budget_blocks_(kBudgetBlocks) {}

void JobMeter::StepFinished(const v1::StepStatus& step, absl::Span<const double> compute_ms) {
  if (step.used_fallback()) {
    const auto reason = static_cast<size_t>(step.no_plan_reason());
    fallback_steps_[reason < kReasons ? reason : 0].Increment();
  }
  tokens_.Increment(static_cast<double>(step.tokens()));
  sequences_.Increment(static_cast<double>(step.sequences()));
  guard_raises_.Increment(static_cast<double>(step.guard_raises()));
  const double seconds = step.step_ms() / 1e3;
  step_seconds_.Observe(seconds);
  straggler_seconds_.Increment(step.straggler_ms() / 1e3);
  bubble_seconds_.Increment(step.bubble_fraction() * seconds *
                            static_cast<double>(compute_ms.size()));
  // What the model says of both plans is trusted as a ratio only: its error in the scale of a step
  // falls out.
  if (!step.used_fallback() && step.predicted_step_ms() > 0) {
    saved_seconds_.Increment(
        std::max(0.0, step.length_policy_step_ms() / step.predicted_step_ms() - 1) * seconds);
  }
  double sum = 0;
  for (const double ms : compute_ms) sum += ms;
  if (!(sum > 0)) return;
  const double mean = sum / static_cast<double>(compute_ms.size());
  for (const double ms : compute_ms) rank_compute_ratio_.Observe(ms / mean);
}

void JobMeter::PlanUsed(const v1::Plan& plan) {
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::MicroBatch& micro_batch : rank.micro_batches()) {
      for (const v1::Slice& slice : micro_batch.slices()) {
        budget_blocks_.Observe(slice.budget_blocks());
      }
    }
  }
}

JobMeter::Reading JobMeter::Read() const {
  Reading reading;
  for (size_t i = 0; i < kReasons; ++i) reading.fallback_steps[i] = Value(fallback_steps_[i]);
  reading.tokens = Value(tokens_);
  reading.sequences = Value(sequences_);
  reading.straggler_seconds = Value(straggler_seconds_);
  reading.bubble_seconds = Value(bubble_seconds_);
  reading.saved_seconds = Value(saved_seconds_);
  reading.guard_raises = Value(guard_raises_);
  reading.step_seconds = step_seconds_.Collect().histogram;
  reading.rank_compute_ratio = rank_compute_ratio_.Collect().histogram;
  reading.budget_blocks = budget_blocks_.Collect().histogram;
  return reading;
}

}  // namespace sparsebalance
