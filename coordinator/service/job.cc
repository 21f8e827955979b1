#include "coordinator/service/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/log_fields.h"
#include "coordinator/service/rank_names.h"
#include "coordinator/service/request_validation.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

absl::Duration OrDefault(uint64_t ms, absl::Duration otherwise) {
  return ms == 0 ? otherwise : absl::Milliseconds(static_cast<int64_t>(ms));
}

}  // namespace

std::shared_ptr<Job> Job::Create(const JobEnvironment& environment, JobSeed seed) {
  return std::shared_ptr<Job>(new Job(environment, std::move(seed)));
}

Job::~Job() {
  absl::MutexLock lock(&mutex_);
  if (closed_.ok()) env_.executor->EndFlow(flow_);
}

Job::Job(const JobEnvironment& environment, JobSeed seed)
    : env_(environment),
      spec_(std::move(seed.spec)),
      id_(JobId::From(spec_.job())),
      fingerprint_(SpecFingerprint(spec_)),
      layout_(spec_.parallelism()),
      lease_(OrDefault(spec_.lease_ms(), env_.options->default_lease)),
      flow_(env_.executor->NewFlow()),
      knowledge_(spec_, std::move(seed.knowledge)),
      members_(id_, layout_.count(), seed.generation, seed.finished,
               {lease_, OrDefault(spec_.startup_grace_ms(), env_.options->default_startup_grace),
                env_.options->join_presence, env_.options->suspect_share},
               &epoch_),
      barrier_(id_, env_.options->max_open_steps),
      plans_(env_.options->kept_plans, env_.options->kept_plan_bytes),
      history_(layout_, env_.options->kept_step_reports),
      journal_(std::move(seed.consumed)),
      idle_since_(env_.scheduler->Now()),
      knowledge_written_(env_.scheduler->Now()) {}

absl::Status Job::CheckJoin(const v1::JoinJobRequest& request) const {
  if (absl::Status status = ValidateJoin(request, layout_.count(), *env_.options); !status.ok()) {
    return status;
  }
  if (request.spec_fingerprint() == fingerprint_) return absl::OkStatus();
  v1::SpecConflict detail;
  *detail.mutable_job() = id_.ToProto();
  detail.set_registered_fingerprint(fingerprint_);
  detail.set_offered_fingerprint(request.spec_fingerprint());
  absl::Status status = absl::AlreadyExistsError(
      absl::StrCat("job ", id_.ToString(), " is registered with spec ",
                   absl::Hex(fingerprint_, absl::kZeroPad16), ", not ",
                   absl::Hex(request.spec_fingerprint(), absl::kZeroPad16),
                   "; register the spec first and send the fingerprint of the answer"));
  planner::AttachDetail(status, detail);
  return status;
}

LogFields Job::Fields(const std::string& node_id) {
  LogFields fields{id_.ToString(), members_.generation()};
  fields.node = node_id;
  return fields;
}

CancelWait Job::Join(const v1::JoinJobRequest& request, JoinDone done) {
  Deferred after;
  absl::Status status = CheckJoin(request);
  absl::MutexLock lock(&mutex_);
  if (status.ok()) status = closed_;
  const absl::Time now = env_.scheduler->Now();
  const std::string& node_id = request.node_id();
  Membership::Changes changes;
  if (status.ok()) {
    status = members_.Join(request, now, changes);
    const bool formed = changes.formed;
    Apply(std::move(changes), node_id, after);
    if (formed) {
      const bool kept =
          request.held_generation() != 0 && request.held_generation() == members_.generation();
      TakeUpGeneration(kept, after);
      members_.EndWait(node_id, now);
    }
  }
  if (!status.ok()) {
    after.Add([done = std::move(done), status]() mutable { done(status); });
    return [] {};
  }
  if (members_.IsMember(node_id)) {
    after.Add([done = std::move(done), answer = MakeJoinAnswer()]() mutable { done(answer); });
    return [] {};
  }
  AnswerJoin(node_id, members_.Stale("a later call of the node took the place of this one", 0),
             /*returns=*/false, after);
  const uint64_t waiter_id = next_waiter_id_++;
  const absl::Duration wait = std::min(absl::Milliseconds(static_cast<double>(request.wait_ms())),
                                       env_.options->max_join_wait);
  const auto weak = weak_from_this();
  const auto end = [weak, node_id, waiter_id](bool timed_out) {
    if (const auto job = weak.lock()) job->EndJoin(node_id, waiter_id, timed_out);
  };
  join_waiters_[node_id] =
      JoinWaiter{waiter_id, env_.scheduler->At(now + wait, [end] { end(true); }), std::move(done)};
  Changed(after);
  return [end] { end(false); };
}

void Job::Apply(Membership::Changes changes, const std::string& caller, Deferred& after) {
  for (const std::string& node_id : changes.suspected) {
    LogWarn(Fields(node_id), "suspect: silent for more than {:.0f} % of what it may be",
            env_.options->suspect_share * 100);
  }
  for (const std::string& node_id : changes.recovered) {
    LogInfo(Fields(node_id), "has called again");
  }
  for (const std::string& node_id : changes.died) {
    LogWarn(Fields(node_id), "dead: silent for longer than its lease of {}",
            absl::FormatDuration(lease_));
    after.Add([events = env_.events] { events->NodeDied(); });
  }
  if (changes.ended) {
    LogInfo(Fields(), "{}", changes.why);
    TellWaiters(barrier_.Clear(), members_.Stale(changes.why, 0), after);
  }
  for (const std::string& node_id : changes.refused) {
    if (node_id == caller) continue;
    AnswerJoin(node_id,
               members_.Stale("the generation that the node holds cannot be kept: another node "
                              "comes without it; join again with held_generation 0 and fresh "
                              "rendezvous",
                              0),
               /*returns=*/false, after);
  }
  if (changes.ended || !changes.died.empty() || !changes.suspected.empty() ||
      !changes.recovered.empty()) {
    Changed(after);
  }
}

void Job::TakeUpGeneration(bool kept, Deferred& after) {
  next_step_ = members_.NextStep();
  LogInfo(Fields(), "{} with {} ranks on {} nodes, next step {}", kept ? "is kept" : "is formed",
          layout_.count(), members_.NodeCount(), next_step_);
  if (journal_.CutBack(next_step_)) WriteLocked(CutConsumed{id_, next_step_, epoch_.current()});
  history_.RestartAt(next_step_);
  PutJobLocked();
  std::vector<std::string> waiting;
  waiting.reserve(join_waiters_.size());
  for (const auto& [node_id, waiter] : join_waiters_) waiting.push_back(node_id);
  const JoinAnswer answer = MakeJoinAnswer();
  for (const std::string& node_id : waiting) {
    AnswerJoin(node_id, answer, /*returns=*/false, after);
  }
  after.Add([events = env_.events, kept] { events->GenerationFormed(kept); });
  Changed(after);
}

JoinAnswer Job::MakeJoinAnswer() {
  v1::JoinJobResponse answer;
  answer.set_generation(members_.generation());
  answer.set_leader_epoch(epoch_.current());
  members_.FillMembers(*answer.mutable_members());
  answer.set_lease_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(lease_)));
  answer.set_heartbeat_ms(static_cast<uint64_t>(
      std::max<int64_t>(absl::ToInt64Milliseconds(lease_ / env_.options->heartbeat_divisor), 1)));
  return std::make_shared<const std::string>(answer.SerializeAsString());
}

void Job::AnswerJoin(const std::string& node_id, absl::StatusOr<JoinAnswer> answer, bool returns,
                     Deferred& after) {
  const auto entry = join_waiters_.find(node_id);
  if (entry == join_waiters_.end()) return;
  env_.scheduler->Cancel(entry->second.timer);
  members_.EndJoinPoll(node_id, returns, env_.scheduler->Now());
  after.Add([done = std::move(entry->second.done), answer = std::move(answer)]() mutable {
    done(std::move(answer));
  });
  join_waiters_.erase(entry);
}

absl::Status Job::MissingToJoin() {
  const std::vector<uint32_t> missing = members_.MissingRanks(env_.scheduler->Now());
  v1::MissingRanks detail;
  *detail.mutable_job() = id_.ToProto();
  for (const uint32_t rank : missing) detail.add_ranks(rank);
  absl::Status status = absl::DeadlineExceededError(absl::StrCat(
      "job ", id_.ToString(), " waits for ", RankNames(missing), " to join; call again"));
  planner::AttachDetail(status, detail);
  return status;
}

void Job::EndJoin(const std::string& node_id, uint64_t waiter_id, bool timed_out) {
  Deferred after;
  absl::MutexLock lock(&mutex_);
  const auto entry = join_waiters_.find(node_id);
  if (entry == join_waiters_.end() || entry->second.id != waiter_id) return;
  // The node itself is not missing: it is told so while it still counts as waiting.
  absl::Status why = timed_out ? MissingToJoin() : absl::CancelledError("the caller is gone");
  AnswerJoin(node_id, std::move(why), /*returns=*/timed_out, after);
}

absl::StatusOr<v1::HeartbeatResponse> Job::Heartbeat(const v1::HeartbeatRequest& request) {
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (absl::Status status = members_.Touch(request.node(), env_.scheduler->Now()); !status.ok()) {
    return status;
  }
  v1::HeartbeatResponse answer;
  answer.set_leader_epoch(epoch_.current());
  answer.set_generation(members_.generation());
  answer.set_lease_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(lease_)));
  return answer;
}

absl::Status Job::Leave(const v1::LeaveJobRequest& request) {
  // The last reports count only from a member; a node that is out already is let go without them.
  if (const auto owned = CallerRanks(request.node()); owned.ok()) {
    if (absl::Status status = CheckReports(*owned, request.telemetry(), request.consumed());
        !status.ok()) {
      return status;
    }
    TakeReports(request.telemetry(), request.consumed());
  }
  Deferred after;
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  Membership::Changes changes;
  const std::string& node_id = request.node().node_id();
  if (absl::Status status =
          members_.Leave(request.node(), request.reason(), request.job_finished(), changes);
      !status.ok()) {
    return status;
  }
  LogInfo(Fields(node_id), "left{}{}", request.job_finished() ? ", its steps done" : "",
          request.reason().empty() ? "" : ": " + request.reason());
  if (request.job_finished()) {
    TellWaiters(barrier_.Clear(),
                members_.Stale(absl::StrCat("job ", id_.ToString(), " is finished: node ", node_id,
                                            " has left with all steps done"),
                               0),
                after);
    PutJobLocked();
  }
  AnswerJoin(node_id, members_.Stale("the node has left", 0), /*returns=*/false, after);
  Apply(std::move(changes), node_id, after);
  if (!members_.HasNodes()) idle_since_ = env_.scheduler->Now();
  Changed(after);
  return absl::OkStatus();
}

absl::StatusOr<v1::EvictNodeResponse> Job::Evict(const v1::EvictNodeRequest& request) {
  Deferred after;
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  v1::EvictNodeResponse answer;
  if (members_.formed()) answer.set_generation(members_.generation());
  std::vector<uint32_t> ranks;
  Membership::Changes changes;
  if (absl::Status status = members_.Evict(request.node_id(), request.reason(), ranks, changes);
      !status.ok()) {
    return status;
  }
  LogWarn(Fields(request.node_id()), "evicted by an operator, with {}{}", RankNames(ranks),
          request.reason().empty() ? "" : ": " + request.reason());
  for (const uint32_t rank : ranks) answer.add_ranks(rank);
  AnswerJoin(request.node_id(), members_.Stale("the node was evicted by an operator", 0),
             /*returns=*/false, after);
  Apply(std::move(changes), request.node_id(), after);
  if (!members_.HasNodes()) idle_since_ = env_.scheduler->Now();
  Changed(after);
  return answer;
}

absl::StatusOr<v1::PutCoverageResponse> Job::PutCoverage(const v1::PutCoverageRequest& request) {
  if (const auto owned = CallerRanks(request.node()); !owned.ok()) return owned.status();
  if (absl::Status status =
          ValidateCoverage(request.entries(), spec_.plan().block_tokens(), *env_.options);
      !status.ok()) {
    return status;
  }
  return knowledge_.PutCoverage(request.entries());
}

void Job::OfferProfile(const v1::LatencyProfile& profile) {
  if (!knowledge_.OfferProfile(profile)) return;
  LogInfo({id_.ToString()}, "latency profile of {} / {} is used from now on",
          profile.key().device_class(), profile.key().model_class());
  Deferred after;
  absl::MutexLock lock(&mutex_);
  Changed(after);
}

bool Job::HasNodes() {
  absl::MutexLock lock(&mutex_);
  return members_.HasNodes();
}

bool Job::finished() {
  absl::MutexLock lock(&mutex_);
  return members_.finished();
}

size_t Job::StateBytes() {
  const size_t knowledge = knowledge_.bytes();
  absl::MutexLock lock(&mutex_);
  return knowledge + journal_.bytes() + plans_.bytes();
}

void Job::SetMemoryFull(bool full) {
  if (knowledge_.full() == full) return;
  knowledge_.SetFull(full);
  if (full) {
    LogWarn({id_.ToString()},
            "namespace {} is at its max-bytes: coverage of further sequences is not remembered",
            id_.ns);
  } else {
    LogInfo({id_.ToString()}, "coverage of further sequences is remembered again");
  }
  Deferred after;
  absl::MutexLock lock(&mutex_);
  Changed(after);
}

bool Job::Sweep(absl::Time now, absl::Duration stalled) {
  bool write_knowledge = false;
  bool forget = false;
  {
    Deferred after;
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return false;
    if (stalled > absl::ZeroDuration()) members_.ExtendLeases(stalled);
    const bool had_nodes = members_.HasNodes();
    Apply(members_.Expire(now), "", after);
    if (had_nodes) idle_since_ = now;
    forget = !members_.HasNodes() &&
             now - idle_since_ > (members_.finished() ? env_.options->finished_retention
                                                      : env_.options->job_retention);
    if (job_row_stale_) PutJobLocked();
    if (now - knowledge_written_ >= env_.options->knowledge_write_interval) {
      knowledge_written_ = now;
      write_knowledge = true;
    }
  }
  if (write_knowledge) WriteKnowledge();
  return forget;
}

void Job::WriteKnowledge() {
  for (StoreWrite& write : knowledge_.TakeWrites(id_, epoch_.current())) {
    const auto done = [weak = weak_from_this(), events = env_.events](const absl::Status& status) {
      if (status.ok()) return;
      events->StoreWriteFailed();
      if (const auto job = weak.lock()) job->knowledge_.MarkUnwritten();
    };
    if (absl::Status refused = env_.store->Write(std::move(write), done); !refused.ok()) {
      done(refused);
    }
  }
}

void Job::WriteLocked(StoreWrite write) {
  if (absl::Status status = env_.store->Write(std::move(write)); !status.ok()) {
    LogError(Fields(), "not stored: {}", std::string(status.message()));
  }
}

void Job::WriteJob() {
  absl::MutexLock lock(&mutex_);
  PutJobLocked();
}

void Job::PutJobLocked() {
  const auto done = [weak = weak_from_this(), events = env_.events](const absl::Status& status) {
    if (status.ok()) return;
    events->StoreWriteFailed();
    const auto job = weak.lock();
    if (job == nullptr) return;
    absl::MutexLock lock(&job->mutex_);
    job->job_row_stale_ = true;
  };
  const StoreJob write{{id_, spec_, members_.generation(), members_.finished()}, epoch_.current()};
  job_row_stale_ = !env_.store->Write(write, done).ok();
}

void Job::Close(const absl::Status& why) {
  Deferred after;
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return;
  closed_ = why;
  // Not when the job is destroyed: who still holds it then, a timer or a write that has just ended,
  // may do so for longer than the executor lives.
  env_.executor->EndFlow(flow_);
  TellWaiters(barrier_.Clear(), why, after);
  while (!join_waiters_.empty()) {
    const std::string node_id = join_waiters_.begin()->first;
    AnswerJoin(node_id, why, /*returns=*/false, after);
  }
  for (auto& [watcher_id, watcher] : watchers_) {
    env_.scheduler->Cancel(watcher.timer);
    after.Add([done = std::move(watcher.done), why]() mutable { done(why); });
  }
  watchers_.clear();
}

JobSeed Job::Export() {
  absl::MutexLock lock(&mutex_);
  JobSeed seed;
  seed.spec = spec_;
  seed.generation = members_.generation();
  seed.finished = members_.finished();
  seed.consumed = journal_.Batches();
  seed.knowledge = knowledge_.Export();
  return seed;
}

}  // namespace sparsebalance
