// ExchangeStep: reports in, plans out.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/digest.h"
#include "coordinator/planner/plan_slice.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/planner/validation.h"
#include "coordinator/service/job.h"
#include "coordinator/service/log_fields.h"
#include "coordinator/service/rank_names.h"
#include "coordinator/service/request_validation.h"
#include "coordinator/service/retry_later.h"
#include "google/protobuf/arena.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

// The planner knows no jobs: fills in whose plan it was.
absl::Status WithJob(absl::Status status, const JobId& id, uint64_t step) {
  if (auto detail = planner::GetDetail<v1::SequenceRejected>(status)) {
    *detail->mutable_job() = id.ToProto();
    planner::AttachDetail(status, *detail);
  }
  if (auto detail = planner::GetDetail<v1::InfeasiblePlan>(status)) {
    *detail->mutable_job() = id.ToProto();
    detail->set_step(step);
    planner::AttachDetail(status, *detail);
  }
  return status;
}

}  // namespace

absl::StatusOr<std::set<uint32_t>> Job::CallerRanks(const v1::NodeKey& node) {
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (absl::Status status = members_.Touch(node, env_.scheduler->Now()); !status.ok()) {
    return status;
  }
  return members_.RanksOf(node.node_id());
}

absl::Status Job::CheckReports(
    const std::set<uint32_t>& owned,
    const google::protobuf::RepeatedPtrField<v1::RankTelemetry>& telemetry,
    const google::protobuf::RepeatedPtrField<v1::ConsumedBatch>& consumed) const {
  if (absl::Status status = ValidateTelemetry(telemetry, owned, *env_.options); !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateConsumed(consumed, *env_.options); !status.ok()) return status;
  if (!consumed.empty() && !owned.contains(0)) {
    return planner::FieldError("consumed", absl::StrCat(consumed.size(), " entries"),
                               "only the node that holds rank 0 reports consumed batches");
  }
  return absl::OkStatus();
}

void Job::TakeReports(const google::protobuf::RepeatedPtrField<v1::RankTelemetry>& telemetry,
                      const google::protobuf::RepeatedPtrField<v1::ConsumedBatch>& consumed) {
  if (telemetry.empty() && consumed.empty()) return;
  struct Finished {
    StepHistory::FinishedStep step;
    std::shared_ptr<const PlannedStep> planned;  // null: it was not trained by a plan
  };
  std::vector<Finished> steps;
  std::vector<const v1::RankTelemetry*> news;
  {
    Deferred after;
    absl::MutexLock lock(&mutex_);
    for (const v1::RankTelemetry& report : telemetry) {
      if (!history_.IsNew(report)) continue;
      news.push_back(&report);
      if (std::optional<StepHistory::FinishedStep> finished = history_.Add(report)) {
        std::shared_ptr<const PlannedStep> planned = AddPlanFacts(finished->status);
        history_.Keep(finished->status);
        steps.push_back({*std::move(finished), std::move(planned)});
        Changed(after);
      }
    }
    for (const v1::ConsumedBatch& batch : consumed) Journal(batch);
  }
  for (const Finished& finished : steps) {
    meter_.StepFinished(finished.step.status, finished.step.compute_ms);
    if (finished.planned != nullptr) meter_.PlanUsed(finished.planned->plan);
  }
  if (!news.empty()) knowledge_.Observe(news);
}

std::shared_ptr<const PlannedStep> Job::AddPlanFacts(v1::StepStatus& status) {
  const std::shared_ptr<const PlannedStep> planned = plans_.FindLatest(status.step());
  if (planned != nullptr) {
    const v1::Plan& plan = planned->plan;
    status.set_length_imbalance(plans_.LengthImbalance(*planned));
    status.set_sequences(static_cast<uint64_t>(planned->request.sequences_size()));
    if (!status.used_fallback()) {
      status.set_policy(plan.policy());
      status.set_predicted_step_ms(plan.predicted_step_ms());
      status.set_length_policy_step_ms(plan.length_policy_step_ms());
      status.set_mean_coverage(plan.mean_coverage());
      status.set_min_coverage_ratio(plan.min_coverage_ratio());
      status.set_bubble_fraction(plan.bubble_fraction());
      if (plan.lower_bound_ms() > 0) {
        status.set_optimality_gap(plan.predicted_step_ms() / plan.lower_bound_ms() - 1.0);
      }
    }
  }
  if (!status.used_fallback()) return planned;
  status.set_policy("length");
  return nullptr;
}

void Job::Journal(const v1::ConsumedBatch& batch) {
  const uint64_t twice_before = journal_.consumed_twice();
  const std::optional<uint64_t> write_id = journal_.Add(batch);
  if (!write_id) return;
  if (journal_.consumed_twice() > twice_before) {
    LogWarn({id_.ToString(), members_.generation(), batch.step()},
            "consumed {} sequences that epoch {} had consumed before",
            journal_.consumed_twice() - twice_before, batch.epoch());
  }
  const auto done = [weak = weak_from_this(), events = env_.events, step = batch.step(),
                     id = *write_id](const absl::Status& status) {
    if (!status.ok()) events->StoreWriteFailed();
    const auto job = weak.lock();
    if (job == nullptr) return;
    absl::MutexLock lock(&job->mutex_);
    job->journal_.Written(step, id, status.ok());
  };
  if (!env_.store->Write(StoreConsumed{id_, batch, epoch_.current()}, done).ok()) {
    journal_.Written(batch.step(), *write_id, false);
  }
  if (const std::optional<uint64_t> first_kept = journal_.Prune()) {
    WriteLocked(PruneConsumed{id_, *first_kept, epoch_.current()});
  }
}

CancelWait Job::ExchangeStep(const v1::ExchangeStepRequest& request, ExchangeDone done) {
  absl::StatusOr<std::set<uint32_t>> owned = CallerRanks(request.node());
  absl::Status status = owned.status();
  if (status.ok()) status = CheckReports(*owned, request.telemetry(), request.consumed());
  if (status.ok() && !request.report_only()) {
    status = ValidateBatch(request.batch(), /*whole=*/owned->contains(0), *env_.options);
  }
  if (!status.ok()) {
    done(status);
    return [] {};
  }
  TakeReports(request.telemetry(), request.consumed());
  if (!request.report_only()) return Ask(request, *owned, std::move(done));
  v1::ExchangeStepResponse answer;
  {
    absl::MutexLock lock(&mutex_);
    answer = ReportAnswer();
  }
  done(std::move(answer));
  return [] {};
}

v1::ExchangeStepResponse Job::ReportAnswer() {
  v1::ExchangeStepResponse answer;
  answer.set_leader_epoch(epoch_.current());
  answer.set_generation(members_.generation());
  answer.set_consumed_through_step(journal_.stored_through_step());
  answer.set_consumed_count(journal_.stored_count());
  return answer;
}

absl::Status Job::CheckPlannedBatch(const PlannedStep& planned,
                                    const v1::ExchangeStepRequest& request) {
  if (planned.batch_digest == request.batch().digest()) return absl::OkStatus();
  const std::string& first = members_.HolderOf(0);
  v1::BatchMismatch detail;
  *detail.mutable_job() = id_.ToProto();
  detail.set_step(planned.step);
  detail.add_node_ids(first);
  detail.add_digests(planned.batch_digest);
  detail.add_node_ids(request.node().node_id());
  detail.add_digests(request.batch().digest());
  absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      "step ", planned.step, " of job ", id_.ToString(), " is planned for batch ",
      absl::Hex(planned.batch_digest, absl::kZeroPad16), " of node ", first, ", but node ",
      request.node().node_id(), " gave ", absl::Hex(request.batch().digest(), absl::kZeroPad16)));
  planner::AttachDetail(status, detail);
  return status;
}

CancelWait Job::Ask(const v1::ExchangeStepRequest& request, const std::set<uint32_t>& owned,
                    ExchangeDone done) {
  const uint64_t step = request.batch().step();
  const std::string& node_id = request.node().node_id();
  std::vector<uint32_t> data_ranks;
  for (const uint32_t rank : owned) {
    const uint32_t index = layout_.DataIndex(rank);
    if (data_ranks.empty() || data_ranks.back() != index) data_ranks.push_back(index);
  }

  Deferred after;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = env_.scheduler->Now();
  absl::Status status = closed_;
  if (status.ok()) status = members_.Touch(request.node(), now);
  if (status.ok() && !members_.complete()) {
    status = members_.Stale(
        absl::StrCat("job ", id_.ToString(), " is finished: some of its nodes have left"),
        request.node().incarnation());
  }
  const std::shared_ptr<const PlannedStep> planned = plans_.Find(members_.generation(), step);
  if (status.ok() && planned != nullptr) {
    status = CheckPlannedBatch(*planned, request);
    if (status.ok()) {
      after.Add([done = std::move(done), answer = ReportAnswer(), planned, data_ranks]() mutable {
        answer.set_plan_digest(planned->plan_digest);
        *answer.mutable_plan() = planner::PlanForRanks(planned->plan, data_ranks);
        done(std::move(answer));
      });
      return [] {};
    }
  } else if (status.ok() && plans_.MayHaveDropped(members_.generation(), step)) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "step ", step, " of generation ", members_.generation(), " of job ", id_.ToString(),
        " was planned so long ago that its plan is gone; to train it again, join again first"));
  }
  StepBarrier::Arrival arrival;
  if (status.ok()) {
    arrival = barrier_.Arrive(node_id, request.batch(), members_.NodeCount());
    if (arrival.outcome == StepBarrier::Outcome::kRefused) status = arrival.error;
  }
  if (!status.ok()) {
    if (planner::GetDetail<v1::BatchMismatch>(status)) {
      LogWarn({id_.ToString(), members_.generation(), step}, "{}", std::string(status.message()));
      after.Add([events = env_.events] { events->BatchMismatched(); });
    }
    TellWaiters(std::move(arrival.told), status, after);
    after.Add([done = std::move(done), status]() mutable { done(status); });
    return [] {};
  }

  StepWaiter waiter;
  waiter.id = next_waiter_id_++;
  waiter.node_id = node_id;
  waiter.data_ranks = std::move(data_ranks);
  waiter.since = now;
  waiter.done = std::move(done);
  const absl::Duration wait = std::min(absl::Milliseconds(static_cast<double>(request.wait_ms())),
                                       env_.options->max_exchange_wait);
  const auto end = [weak = weak_from_this(), step, id = waiter.id](bool timed_out) {
    if (const auto job = weak.lock()) job->EndExchange(step, id, timed_out);
  };
  waiter.timer = env_.scheduler->At(now + wait, [end] { end(true); });
  members_.BeginWait(node_id);
  barrier_.AddWaiter(step, std::move(waiter));
  if (step >= next_step_) {
    next_step_ = step + 1;
    Changed(after);
  }
  if (arrival.outcome == StepBarrier::Outcome::kComplete) {
    after.Add([self = shared_from_this(), step, serial = arrival.serial] {
      self->SubmitPlan(step, serial);
    });
  }
  return [end] { end(false); };
}

void Job::SubmitPlan(uint64_t step, uint64_t serial) {
  const absl::Time queued = env_.scheduler->Now();
  if (env_.executor->TrySubmit(flow_, [self = shared_from_this(), step, serial, queued] {
        self->env_.events->PlanQueued(self->env_.scheduler->Now() - queued);
        self->MakePlan(step, serial);
      })) {
    return;
  }
  env_.events->PlanPostponed();
  Deferred after;
  absl::MutexLock lock(&mutex_);
  TellWaiters(barrier_.Postpone(step, serial),
              RetryLater(absl::StatusCode::kResourceExhausted,
                         absl::StrCat("too many plans are being made; step ", step, " of job ",
                                      id_.ToString(), " is planned when asked for again"),
                         env_.options->overload_retry),
              after);
}

void Job::MakePlan(uint64_t step, uint64_t serial) {
  std::shared_ptr<const v1::GlobalBatch> batch;
  {
    absl::MutexLock lock(&mutex_);
    batch = barrier_.Batch(step, serial);
  }
  if (batch == nullptr) return;  // the generation ended meanwhile
  const absl::Time begin = env_.scheduler->Now();
  const auto planned = std::make_shared<PlannedStep>();
  planned->step = step;
  planned->batch_digest = batch->digest();
  knowledge_.FillRequest(*batch, planned->request);
  const absl::Status made = planner::MakePlan(planned->request, planned->plan);
  if (!made.ok()) {
    const absl::Status status = WithJob(made, id_, step);
    LogWarn({id_.ToString(), 0, step}, "cannot be planned: {}", std::string(status.message()));
    env_.events->PlanFailed();
    Deferred after;
    absl::MutexLock lock(&mutex_);
    TellWaiters(barrier_.Fail(step, serial, status), status, after);
    return;
  }
  planned->plan_digest = planner::Digest(planned->plan);
  if (const auto held = env_.claims->Held(id_); !held.ok()) {
    // The claim ended while the plan was made: another replica may have planned the step by now.
    Deferred after;
    absl::MutexLock lock(&mutex_);
    TellWaiters(barrier_.Postpone(step, serial), held.status(), after);
    return;
  }
  env_.events->PlanMade(planned->plan.policy(), env_.scheduler->Now() - begin);

  std::optional<std::vector<StepWaiter>> waiters;
  v1::ExchangeStepResponse common;
  absl::Time now;
  {
    absl::MutexLock lock(&mutex_);
    waiters = barrier_.Finish(step, serial);
    if (!waiters) return;
    planned->generation = members_.generation();
    plans_.Add(planned);
    for (StepWaiter& waiter : *waiters) EndStepWait(waiter);
    common = ReportAnswer();
    now = env_.scheduler->Now();
  }
  for (StepWaiter& waiter : *waiters) {
    env_.events->BarrierWaited(now - waiter.since);
    v1::ExchangeStepResponse answer = common;
    answer.set_plan_digest(planned->plan_digest);
    *answer.mutable_plan() = planner::PlanForRanks(planned->plan, waiter.data_ranks);
    waiter.done(std::move(answer));
  }
  RememberLengthImbalance(*planned);
}

void Job::RememberLengthImbalance(const PlannedStep& planned) {
  double imbalance = planned.plan.rank_imbalance();
  if (planned.plan.policy() != "length") {
    google::protobuf::Arena arena;
    auto& request = *google::protobuf::Arena::CreateMessage<v1::PlanRequest>(&arena);
    auto& plan = *google::protobuf::Arena::CreateMessage<v1::Plan>(&arena);
    request = planned.request;
    request.mutable_settings()->set_policy("length");
    if (!planner::MakePlan(request, plan).ok()) return;
    imbalance = plan.rank_imbalance();
  }
  absl::MutexLock lock(&mutex_);
  plans_.SetLengthImbalance(planned.generation, planned.step, imbalance);
}

void Job::EndStepWait(StepWaiter& waiter) {
  env_.scheduler->Cancel(waiter.timer);
  members_.EndWait(waiter.node_id, env_.scheduler->Now());
}

void Job::TellWaiters(std::vector<StepWaiter> waiters, const absl::Status& why, Deferred& after) {
  const absl::Time now = env_.scheduler->Now();
  for (StepWaiter& waiter : waiters) {
    EndStepWait(waiter);
    after.Add([events = env_.events, waited = now - waiter.since, done = std::move(waiter.done),
               why]() mutable {
      events->BarrierWaited(waited);
      done(why);
    });
  }
}

absl::Status Job::MissingToExchange(uint64_t step) {
  std::vector<uint32_t> missing;
  const std::vector<std::string> nodes = barrier_.MissingNodes(step, members_.Nodes());
  for (const std::string& node_id : nodes) {
    for (const uint32_t rank : members_.RanksOf(node_id)) missing.push_back(rank);
  }
  std::sort(missing.begin(), missing.end());
  v1::MissingRanks detail;
  *detail.mutable_job() = id_.ToProto();
  detail.set_step(step);
  for (const uint32_t rank : missing) detail.add_ranks(rank);
  absl::Status status = absl::DeadlineExceededError(
      missing.empty()
          ? absl::StrCat("the plan of step ", step, " of job ", id_.ToString(),
                         " is still being made; call again")
          : absl::StrCat("step ", step, " of job ", id_.ToString(), " waits for ",
                         RankNames(missing), " (", absl::StrJoin(nodes, ", "), "); call again"));
  planner::AttachDetail(status, detail);
  return status;
}

void Job::EndExchange(uint64_t step, uint64_t waiter_id, bool timed_out) {
  Deferred after;
  absl::MutexLock lock(&mutex_);
  std::optional<StepWaiter> waiter = barrier_.RemoveWaiter(step, waiter_id);
  if (!waiter) return;
  std::vector<StepWaiter> told;
  told.push_back(*std::move(waiter));
  TellWaiters(std::move(told),
              timed_out ? MissingToExchange(step) : absl::CancelledError("the caller is gone"),
              after);
}

}  // namespace sparsebalance
