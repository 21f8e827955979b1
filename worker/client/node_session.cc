#include "worker/client/node_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"
#include "worker/client/backoff.h"
#include "worker/client/incarnation.h"

namespace sparsebalance {
namespace {

// Errors that time mends: nobody answers, or the server asks for patience.
bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

std::string Brief(const absl::Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

// Whom a join that has not come about is waiting for.
std::string AwaitedText(const absl::Status& status) {
  const std::optional<v1::MissingRanks> missing = planner::GetDetail<v1::MissingRanks>(status);
  if (!missing.has_value() || missing->ranks().empty()) {
    return absl::StrCat("the coordinator (", Brief(status), ")");
  }
  return absl::StrCat(missing->ranks_size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(missing->ranks(), ", "), " to join");
}

constexpr absl::Duration kPatienceBetweenLines = absl::Seconds(5);

}  // namespace

NodeSession::NodeSession(NodeSessionOptions options, v1::JobSpec spec, const StopSignal* stop)
    : options_(std::move(options)),
      spec_(std::move(spec)),
      stop_(stop),
      client_(options_.address, options_.tls),
      incarnation_(options_.incarnation != 0
                       ? options_.incarnation
                       : MakeIncarnation(options_.restart_attempt, absl::Now())) {}

NodeSession::~NodeSession() { StopThreads(); }

absl::StatusOr<std::unique_ptr<NodeSession>> NodeSession::Register(NodeSessionOptions options,
                                                                   v1::JobSpec spec,
                                                                   const StopSignal* stop) {
  std::unique_ptr<NodeSession> session(new NodeSession(std::move(options), std::move(spec), stop));
  const absl::Status status =
      session->RegisterWithRetry(absl::Now() + session->options_.start_timeout);
  if (!status.ok()) return status;
  return session;
}

absl::Status NodeSession::RegisterWithRetry(absl::Time deadline) {
  Backoff backoff(options_.backoff_initial, options_.backoff_max, BackoffSeed(options_.node_id));
  absl::Time next_line = absl::Now();
  while (true) {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = spec_;
    {
      absl::MutexLock lock(&mutex_);
      request.set_known_leader_epoch(leader_epoch_);
    }
    absl::StatusOr<v1::RegisterJobResponse> response =
        client_.RegisterJob(request, options_.rpc_timeout);
    if (response.ok()) {
      absl::MutexLock lock(&mutex_);
      spec_fingerprint_ = response->spec_fingerprint();
      leader_epoch_ = std::max(leader_epoch_, response->leader_epoch());
      return absl::OkStatus();
    }
    if (!IsTransient(response.status())) return response.status();
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no coordinator answered at ", options_.address, " within ",
                       absl::FormatDuration(options_.start_timeout),
                       " (last: ", Brief(response.status()), "); start one or give its address"));
    }
    if (now >= next_line) {
      options_.log(absl::StrCat("waiting for the coordinator at ", options_.address, " (",
                                Brief(response.status()), ")"));
      next_line = now + kPatienceBetweenLines;
    }
    if (stop_->WaitFor(std::min(backoff.Next(), deadline - now))) {
      return absl::CancelledError("stopped while waiting for the coordinator");
    }
  }
}

absl::StatusOr<v1::JoinJobResponse> NodeSession::JoinOnce(bool reconnect, absl::Duration wait) {
  v1::JoinJobRequest request;
  {
    absl::MutexLock lock(&mutex_);
    *request.mutable_job() = spec_.job();
    request.set_spec_fingerprint(spec_fingerprint_);
    request.set_node_id(options_.node_id);
    request.set_incarnation(incarnation_);
    request.set_known_leader_epoch(leader_epoch_);
    request.set_next_step(first_open_step_);
    request.set_client_version(options_.client_version);
    request.set_previous_incarnation(options_.previous_incarnation);
    for (const v1::RankInfo& rank : ranks_) {
      *request.add_ranks() = rank;
      // The communicator is held: its addresses are of no use in another generation.
      if (reconnect) request.mutable_ranks()->rbegin()->clear_rendezvous();
    }
    if (reconnect) request.set_held_generation(generation_);
  }
  request.set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(wait)));
  return client_.JoinJob(request, wait + options_.rpc_timeout);
}

absl::StatusOr<v1::JoinJobResponse> NodeSession::Join(std::vector<v1::RankInfo> ranks,
                                                      uint64_t next_step) {
  {
    absl::MutexLock lock(&mutex_);
    ranks_ = std::move(ranks);
    first_open_step_ = next_step;
  }
  const absl::Time deadline = absl::Now() + options_.start_timeout;
  Backoff backoff(options_.backoff_initial, options_.backoff_max, BackoffSeed(options_.node_id));
  absl::Time next_line = absl::Now() + options_.join_poll;
  while (true) {
    absl::StatusOr<v1::JoinJobResponse> joined = JoinOnce(/*reconnect=*/false, options_.join_poll);
    if (joined.ok()) {
      absl::MutexLock lock(&mutex_);
      generation_ = joined->generation();
      leader_epoch_ = std::max(leader_epoch_, joined->leader_epoch());
      if (joined->heartbeat_ms() > 0) heartbeat_ = absl::Milliseconds(joined->heartbeat_ms());
      incarnations_.clear();
      for (const v1::Member& member : joined->members()) {
        incarnations_.push_back(member.incarnation());
      }
      exchange_thread_ = std::thread([this] { ExchangeLoop(); });
      heartbeat_thread_ = std::thread([this] { HeartbeatLoop(); });
      return joined;
    }
    const absl::Status& status = joined.status();
    if (absl::IsNotFound(status)) {
      // The coordinator lost the job between the two calls.
      if (absl::Status again = RegisterWithRetry(deadline); !again.ok()) return again;
    } else if (absl::IsAborted(status)) {
      if (!MayJoinAfter(status)) return status;
    } else if (!IsTransient(status)) {
      return status;
    }
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("job ", spec_.job().name(), " is not complete after ",
                       absl::FormatDuration(options_.start_timeout), ": still waiting for ",
                       AwaitedText(status), "; start the nodes that are missing"));
    }
    if (now >= next_line) {
      options_.log(absl::StrCat("job ", spec_.job().name(), ": waiting for ", AwaitedText(status)));
      next_line = now + kPatienceBetweenLines;
    }
    // A long poll that ran out was itself the pause.
    const absl::Duration pause =
        absl::IsDeadlineExceeded(status) ? absl::ZeroDuration() : backoff.Next();
    if (stop_->WaitFor(pause)) {
      return absl::CancelledError("stopped while waiting for the other nodes");
    }
  }
}

bool NodeSession::MayJoinAfter(const absl::Status& aborted) {
  const std::optional<v1::StaleMember> stale = planner::GetDetail<v1::StaleMember>(aborted);
  absl::MutexLock lock(&mutex_);
  const bool later = stale.has_value() && stale->current_incarnation() > incarnation_;
  const bool first_life = options_.previous_incarnation == 0;
  if (stale.has_value() && stale->evicted() && !(later && first_life)) {
    evicted_ = true;
    return false;
  }
  if (!later) return true;
  const std::optional<uint64_t> next = IncarnationAfter(incarnation_, stale->current_incarnation());
  // Once only: two processes that were given the same name must not drive each other out for ever.
  if (!next.has_value() || !first_life || incarnation_raised_) return false;
  options_.log(absl::StrCat("node ", options_.node_id, " has been in the job as incarnation ",
                            stale->current_incarnation(),
                            ", which is later than this machine's clock (", incarnation_,
                            "); joining as ", *next));
  incarnation_ = *next;
  incarnation_raised_ = true;
  return true;
}

v1::NodeKey NodeSession::Key() const {
  v1::NodeKey key;
  *key.mutable_job() = spec_.job();
  key.set_node_id(options_.node_id);
  key.set_incarnation(incarnation_);
  key.set_generation(generation_);
  key.set_known_leader_epoch(leader_epoch_);
  return key;
}

v1::ProfileKey NodeSession::DeviceKey() const {
  v1::ProfileKey key;
  key.set_namespace_(spec_.job().namespace_());
  key.set_device_class(spec_.device_class());
  key.set_model_class(spec_.model_class());
  return key;
}

void NodeSession::Request(const v1::GlobalBatch& batch) {
  absl::MutexLock lock(&mutex_);
  if (batch.step() < first_open_step_) return;
  if (wanted_.has_value() && wanted_->step() >= batch.step()) return;
  wanted_ = batch;
  if (in_flight_ != nullptr && in_flight_step_ < batch.step()) in_flight_->TryCancel();
}

std::optional<PlanOffer> NodeSession::Wait(uint64_t step, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return (offer_.has_value() && offer_->step == step) || away_ || closing_ ||
           first_open_step_ > step || !health_.ok();
  };
  mutex_.AwaitWithDeadline(absl::Condition(&settled), deadline);
  if (offer_.has_value() && offer_->step == step) return offer_;
  // This rank will say that it has no plan; one that comes now would be believed by others only.
  first_open_step_ = std::max(first_open_step_, step + 1);
  return std::nullopt;
}

bool NodeSession::CoordinatorAway() {
  absl::MutexLock lock(&mutex_);
  return away_;
}

void NodeSession::Report(v1::RankTelemetry telemetry) {
  absl::MutexLock lock(&mutex_);
  telemetry_.push_back(std::move(telemetry));
  const size_t most = options_.max_unsent_steps * std::max<size_t>(1, ranks_.size());
  while (telemetry_.size() > most) telemetry_.pop_front();
}

void NodeSession::ReportConsumed(v1::ConsumedBatch consumed) {
  absl::MutexLock lock(&mutex_);
  consumed_.push_back(std::move(consumed));
  // The journal is a check, the checkpoint is the authority: a gap in it costs nothing else.
  while (consumed_.size() > options_.max_unsent_consumed) consumed_.pop_front();
}

absl::Status NodeSession::Health() {
  absl::MutexLock lock(&mutex_);
  return health_;
}

absl::Status NodeSession::PutCoverage(const std::vector<v1::SequenceCoverage>& entries) {
  constexpr size_t kChunk = 4096;
  for (size_t begin = 0; begin < entries.size(); begin += kChunk) {
    v1::PutCoverageRequest request;
    {
      absl::MutexLock lock(&mutex_);
      *request.mutable_node() = Key();
    }
    for (size_t i = begin; i < std::min(entries.size(), begin + kChunk); ++i) {
      *request.add_entries() = entries[i];
    }
    absl::StatusOr<v1::PutCoverageResponse> response =
        client_.PutCoverage(request, options_.rpc_timeout);
    if (!response.ok()) return response.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::LatencyProfile> NodeSession::GetProfile() {
  v1::GetProfileRequest request;
  *request.mutable_key() = DeviceKey();
  absl::StatusOr<v1::GetProfileResponse> response =
      client_.GetProfile(request, options_.rpc_timeout);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_profile());
}

absl::Status NodeSession::PutProfile(v1::LatencyProfile profile) {
  v1::PutProfileRequest request;
  *request.mutable_profile() = std::move(profile);
  *request.mutable_profile()->mutable_key() = DeviceKey();
  return client_.PutProfile(request, options_.rpc_timeout).status();
}

void NodeSession::StopThreads() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  client_.Interrupt();
  if (exchange_thread_.joinable()) exchange_thread_.join();
  if (heartbeat_thread_.joinable()) heartbeat_thread_.join();
  client_.Resume();
}

absl::Status NodeSession::Leave(const std::string& reason, bool job_finished) {
  StopThreads();
  v1::LeaveJobRequest request;
  {
    absl::MutexLock lock(&mutex_);
    *request.mutable_node() = Key();
    AddReports(request);
  }
  request.set_reason(reason);
  request.set_job_finished(job_finished);
  return client_.LeaveJob(request, options_.rpc_timeout).status();
}

}  // namespace sparsebalance
