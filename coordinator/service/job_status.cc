// What operators see of a job.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/explain.h"
#include "coordinator/service/job.h"
#include "coordinator/service/rank_names.h"

namespace sparsebalance {

v1::JobState Job::State() {
  if (members_.finished()) return v1::JOB_STATE_FINISHED;
  if (members_.formed()) return v1::JOB_STATE_TRAINING;
  if (members_.generation() == 0 && !members_.HasNodes()) return v1::JOB_STATE_REGISTERED;
  return v1::JOB_STATE_JOINING;
}

v1::JobStatus Job::StatusLocked() {
  const absl::Time now = env_.scheduler->Now();
  v1::JobStatus status;
  *status.mutable_spec() = spec_;
  status.set_spec_fingerprint(fingerprint_);
  status.set_state(State());
  status.set_generation(members_.generation());
  status.set_leader_epoch(epoch_.current());
  status.set_revision(revision_);
  members_.FillStatus(status, now);
  for (v1::RankStatus& rank : *status.mutable_ranks()) {
    rank.set_last_step(history_.LastStep(rank.rank()));
  }
  if (!members_.finished()) {
    for (const uint32_t rank : members_.MissingRanks(now)) status.add_missing_ranks(rank);
  }
  status.set_next_step(next_step_);
  for (const v1::StepStatus& step : history_.finished()) *status.add_recent_steps() = step;
  status.set_fallback_steps(history_.fallback_steps());
  status.set_steps_reported(history_.steps_reported());
  status.set_sequences_consumed(journal_.consumed_in_epoch());
  status.set_sequences_consumed_twice(journal_.consumed_twice());
  knowledge_.FillStatus(status);
  status.set_state_bytes(knowledge_.bytes() + journal_.bytes() + plans_.bytes());
  return status;
}

v1::JobStatus Job::Status() {
  absl::MutexLock lock(&mutex_);
  return StatusLocked();
}

JobFigures Job::Figures() {
  JobFigures figures;
  figures.id = id_;
  figures.policy = PolicyName();
  figures.ranks = layout_.count();
  knowledge_.FillFigures(figures);
  figures.meter = meter_.Read();
  absl::MutexLock lock(&mutex_);
  const absl::Time now = env_.scheduler->Now();
  figures.state = State();
  figures.nodes = members_.NodeCount();
  if (!members_.finished()) figures.ranks_missing = members_.MissingRanks(now).size();
  figures.barrier_oldest_wait = now - std::min(now, barrier_.WaitingSince());
  figures.generation = members_.generation();
  figures.next_step = next_step_;
  figures.steps_reported = history_.steps_reported();
  figures.sequences_consumed_twice = journal_.consumed_twice();
  figures.state_bytes = knowledge_.bytes() + journal_.bytes() + plans_.bytes();
  const std::deque<v1::StepStatus>& steps = history_.finished();
  if (!steps.empty()) figures.last_step = steps.back();
  const auto planned = std::find_if(steps.rbegin(), steps.rend(), [](const v1::StepStatus& step) {
    return !step.used_fallback() && step.predicted_step_ms() > 0;
  });
  if (planned != steps.rend()) figures.last_planned = *planned;
  return figures;
}

std::string Job::PolicyName() const {
  return spec_.plan().policy().empty() ? "sparsebalance" : spec_.plan().policy();
}

JobSnapshot Job::Snapshot() {
  absl::MutexLock lock(&mutex_);
  return {StatusLocked(), plans_.Kept()};
}

v1::JobSummary Job::Summary() {
  absl::MutexLock lock(&mutex_);
  v1::JobSummary summary;
  *summary.mutable_job() = id_.ToProto();
  summary.set_state(State());
  summary.set_generation(members_.generation());
  summary.set_ranks(layout_.count());
  summary.set_ranks_present(
      layout_.count() - static_cast<uint32_t>(members_.MissingRanks(env_.scheduler->Now()).size()));
  summary.set_next_step(next_step_);
  summary.set_policy(PolicyName());
  if (!history_.finished().empty()) {
    summary.set_step_ms(history_.finished().back().step_ms());
    summary.set_rank_imbalance(history_.finished().back().rank_imbalance());
  }
  return summary;
}

absl::StatusOr<v1::GetPlanResponse> Job::GetPlan(uint64_t step, bool explain) {
  std::shared_ptr<const PlannedStep> planned;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    planned = plans_.FindLatest(step);
    if (planned == nullptr) {
      const std::vector<uint64_t> kept = plans_.Steps();
      return absl::NotFoundError(
          kept.empty() ? absl::StrCat("job ", id_.ToString(), " has no plan yet")
                       : absl::StrCat("job ", id_.ToString(), " keeps no plan of step ", step,
                                      "; it keeps ", StepNames(kept)));
    }
  }
  v1::GetPlanResponse answer;
  *answer.mutable_plan() = planned->plan;
  answer.set_plan_digest(planned->plan_digest);
  answer.set_generation(planned->generation);
  *answer.mutable_request() = planned->request;
  if (explain) {
    for (std::string& sentence : planner::Explain(planned->request, planned->plan)) {
      answer.add_explanation(std::move(sentence));
    }
  }
  return answer;
}

void Job::Changed(Deferred& after) {
  ++revision_;
  if (watchers_.empty()) return;
  v1::WatchJobResponse answer;
  *answer.mutable_status() = StatusLocked();
  for (auto watcher = watchers_.begin(); watcher != watchers_.end();) {
    if (watcher->second.after_revision >= revision_) {
      ++watcher;
      continue;
    }
    env_.scheduler->Cancel(watcher->second.timer);
    after.Add([done = std::move(watcher->second.done), answer]() mutable { done(answer); });
    watcher = watchers_.erase(watcher);
  }
}

CancelWait Job::Watch(uint64_t after_revision, absl::Duration wait, WatchDone done) {
  Deferred after;
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) {
    after.Add([done = std::move(done), why = closed_]() mutable { done(why); });
    return [] {};
  }
  if (revision_ > after_revision) {
    v1::WatchJobResponse answer;
    *answer.mutable_status() = StatusLocked();
    after.Add([done = std::move(done), answer]() mutable { done(answer); });
    return [] {};
  }
  if (watchers_.size() >= env_.options->max_watchers_per_job) {
    after.Add(
        [done = std::move(done), why = absl::ResourceExhaustedError(absl::StrCat(
                                     "job ", id_.ToString(), " is watched by ", watchers_.size(),
                                     " callers already"))]() mutable { done(why); });
    return [] {};
  }
  const uint64_t watcher_id = next_waiter_id_++;
  const auto end = [weak = weak_from_this(), watcher_id](bool timed_out) {
    if (const auto job = weak.lock()) job->EndWatch(watcher_id, timed_out);
  };
  watchers_[watcher_id] = Watcher{
      after_revision,
      env_.scheduler->At(env_.scheduler->Now() + std::min(wait, env_.options->max_watch_wait),
                         [end] { end(true); }),
      std::move(done)};
  return [end] { end(false); };
}

void Job::EndWatch(uint64_t watcher_id, bool timed_out) {
  Deferred after;
  absl::MutexLock lock(&mutex_);
  const auto watcher = watchers_.find(watcher_id);
  if (watcher == watchers_.end()) return;
  env_.scheduler->Cancel(watcher->second.timer);
  absl::StatusOr<v1::WatchJobResponse> answer = absl::CancelledError("the caller is gone");
  if (timed_out) {
    v1::WatchJobResponse unchanged;
    *unchanged.mutable_status() = StatusLocked();
    answer = std::move(unchanged);
  }
  after.Add([done = std::move(watcher->second.done), answer = std::move(answer)]() mutable {
    done(std::move(answer));
  });
  watchers_.erase(watcher);
}

}  // namespace sparsebalance
