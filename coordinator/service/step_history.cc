#include "coordinator/service/step_history.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sparsebalance {
namespace {

v1::NoPlanReason FirstReason(v1::NoPlanReason a, v1::NoPlanReason b) {
  if (a == v1::NO_PLAN_REASON_NONE || b == v1::NO_PLAN_REASON_NONE) return std::max(a, b);
  return std::min(a, b);
}

}  // namespace

StepHistory::StepHistory(RankLayout layout, size_t kept)
    : layout_(layout), kept_(std::max<size_t>(kept, 1)), last_step_(layout.count(), 0) {}

bool StepHistory::IsNew(const v1::RankTelemetry& report) const {
  if (report.step() < forgotten_below_ || completed_.contains(report.step())) return false;
  const auto pending = pending_.find(report.step());
  return pending == pending_.end() || !pending->second.ranks.contains(report.rank());
}

std::optional<StepHistory::FinishedStep> StepHistory::Add(const v1::RankTelemetry& report) {
  Pending& step = pending_[report.step()];
  step.ranks.insert(report.rank());
  v1::StepStatus& status = step.status;
  status.set_step(report.step());
  status.set_step_ms(std::max(status.step_ms(), report.step_ms()));
  status.set_plan_wait_ms(std::max(status.plan_wait_ms(), report.plan_wait_ms()));
  status.set_used_fallback(status.used_fallback() || report.used_fallback());
  status.set_no_plan_reason(FirstReason(status.no_plan_reason(), report.no_plan_reason()));
  status.set_guard_raises(status.guard_raises() + report.guard_raises());
  step.compute_ms.push_back(report.compute_ms());
  if (report.compute_ms() > step.slowest_compute_ms ||
      (report.compute_ms() == step.slowest_compute_ms && report.rank() < status.slowest_rank())) {
    step.slowest_compute_ms = report.compute_ms();
    status.set_slowest_rank(report.rank());
  }
  step.loss_sum += report.loss_sum();
  step.supervised_tokens += report.supervised_tokens();
  // Every stage of a replica sees the same tokens: the first one speaks for all.
  if (layout_.Stage(report.rank()) == 0) {
    status.set_tokens(status.tokens() + report.tokens());
    for (const v1::MicroBatchTelemetry& micro : report.micro_batches()) {
      for (const v1::SequenceTelemetry& sequence : micro.sequences()) {
        step.sequence_ids.insert(sequence.sequence_id());
      }
    }
  }
  last_step_[report.rank()] = std::max(last_step_[report.rank()], report.step());

  if (step.ranks.size() < layout_.count()) {
    // A step that some rank never reports must not be kept for ever.
    if (pending_.size() > kept_) {
      forgotten_below_ = std::max(forgotten_below_, pending_.begin()->first + 1);
      pending_.erase(pending_.begin());
    }
    return std::nullopt;
  }
  const double sum = std::accumulate(step.compute_ms.begin(), step.compute_ms.end(), 0.0);
  const double mean = sum / static_cast<double>(layout_.count());
  status.set_straggler_ms(step.slowest_compute_ms * static_cast<double>(layout_.count()) - sum);
  status.set_rank_imbalance(mean > 0 ? step.slowest_compute_ms / mean : 1.0);
  if (step.supervised_tokens > 0) {
    status.set_loss(step.loss_sum / static_cast<double>(step.supervised_tokens));
  }
  status.set_sequences(step.sequence_ids.size());
  if (!status.used_fallback()) status.set_no_plan_reason(v1::NO_PLAN_REASON_NONE);
  FinishedStep finished{std::move(status), std::move(step.compute_ms)};
  pending_.erase(report.step());
  completed_.insert(report.step());
  if (completed_.size() > kept_) {
    forgotten_below_ = std::max(forgotten_below_, *completed_.begin() + 1);
    completed_.erase(completed_.begin());
    pending_.erase(pending_.begin(), pending_.lower_bound(forgotten_below_));
  }
  ++steps_reported_;
  if (finished.status.used_fallback()) ++fallback_steps_;
  return finished;
}

void StepHistory::Keep(v1::StepStatus finished) {
  // Reports of neighbouring steps may complete in either order.
  const auto position = std::upper_bound(
      finished_.begin(), finished_.end(), finished.step(),
      [](uint64_t step, const v1::StepStatus& other) { return step < other.step(); });
  finished_.insert(position, std::move(finished));
  if (finished_.size() > kept_) finished_.pop_front();
}

void StepHistory::RestartAt(uint64_t next_step) {
  forgotten_below_ = std::min(forgotten_below_, next_step);
  completed_.erase(completed_.lower_bound(next_step), completed_.end());
  pending_.erase(pending_.lower_bound(next_step), pending_.end());
  std::erase_if(finished_, [&](const v1::StepStatus& step) { return step.step() >= next_step; });
  for (uint64_t& last : last_step_) last = std::min(last, next_step == 0 ? 0 : next_step - 1);
}

uint64_t StepHistory::LastStep(uint32_t rank) const { return last_step_[rank]; }

}  // namespace sparsebalance
