// The background half of NodeSession: one thread that fetches plans, one that keeps the lease.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"
#include "worker/client/backoff.h"
#include "worker/client/node_session.h"

namespace sparsebalance {
namespace {

// Another replica answers for the job, or none does: it has to be registered there.
bool NeedsOwner(const absl::Status& status) {
  return planner::GetDetail<v1::NotOwner>(status).has_value();
}

}  // namespace

bool NodeSession::ExchangeNeeded() const {
  if (!health_.ok()) return false;
  if (rejoin_needed_) return true;
  return wanted_.has_value() && wanted_->step() >= first_open_step_ &&
         !(offer_.has_value() && offer_->step == wanted_->step());
}

void NodeSession::ExchangeLoop() {
  Backoff backoff(options_.backoff_initial, options_.backoff_max, BackoffSeed(options_.node_id));
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return closing_ || ExchangeNeeded();
      };
      mutex_.Await(absl::Condition(&ready));
      if (closing_) return;
    }
    if (ExchangeOnce()) {
      backoff.Reset();
      continue;
    }
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&closing_), backoff.Next())) return;
  }
}

v1::ExchangeStepRequest NodeSession::NextRequest() const {
  v1::ExchangeStepRequest request;
  *request.mutable_node() = Key();
  AddReports(request);
  *request.mutable_batch() = *wanted_;
  const bool holds_rank_0 = std::any_of(ranks_.begin(), ranks_.end(),
                                        [](const v1::RankInfo& rank) { return rank.rank() == 0; });
  if (!holds_rank_0) {
    request.mutable_batch()->clear_sequences();
    request.mutable_batch()->clear_following();
  }
  request.set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(options_.exchange_timeout)));
  return request;
}

bool NodeSession::ExchangeOnce() {
  bool rejoin = false;
  v1::ExchangeStepRequest request;
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mutex_);
    rejoin = rejoin_needed_;
    if (!rejoin) {
      if (!ExchangeNeeded()) return true;
      request = NextRequest();
      in_flight_ = &context;
      in_flight_step_ = request.batch().step();
    }
  }
  if (rejoin) return Rejoin();
  absl::StatusOr<v1::ExchangeStepResponse> reply =
      client_.ExchangeStep(request, options_.exchange_timeout + options_.rpc_timeout, context);
  {
    absl::MutexLock lock(&mutex_);
    in_flight_ = nullptr;
  }
  if (!reply.ok()) return HandleFailure(request, reply.status());
  return TakeReply(request, *std::move(reply));
}

void NodeSession::DropReported(const v1::ExchangeStepRequest& request) {
  // Report() may have dropped some of them meanwhile, so count by identity: rank and step.
  for (const v1::RankTelemetry& sent : request.telemetry()) {
    const auto same = [&](const v1::RankTelemetry& t) {
      return t.rank() == sent.rank() && t.step() == sent.step();
    };
    telemetry_.erase(std::remove_if(telemetry_.begin(), telemetry_.end(), same), telemetry_.end());
  }
}

bool NodeSession::TakeReply(const v1::ExchangeStepRequest& request,
                            v1::ExchangeStepResponse reply) {
  absl::MutexLock lock(&mutex_);
  if (reply.leader_epoch() < leader_epoch_) {
    options_.log(absl::StrCat("job ", spec_.job().name(), ": threw away a plan of leader epoch ",
                              reply.leader_epoch(), ", epoch ", leader_epoch_, " is known"));
    return false;
  }
  leader_epoch_ = reply.leader_epoch();
  away_ = false;
  DropReported(request);
  if (reply.consumed_count() > 0) {
    while (!consumed_.empty() && consumed_.front().step() <= reply.consumed_through_step()) {
      consumed_.pop_front();
    }
  }
  const uint64_t step = request.batch().step();
  if (reply.generation() != generation_) return false;
  if (step < first_open_step_) return true;
  PlanOffer offer;
  offer.leader_epoch = reply.leader_epoch();
  offer.generation = reply.generation();
  offer.step = step;
  offer.digest = reply.plan_digest();
  offer.plan = std::make_shared<const v1::Plan>(std::move(*reply.mutable_plan()));
  offer_ = std::move(offer);
  return true;
}

bool NodeSession::HandleFailure(const v1::ExchangeStepRequest& request,
                                const absl::Status& status) {
  const uint64_t step = request.batch().step();
  const std::string what =
      absl::StrCat("job ", spec_.job().name(), ", plan of step ", step, ": ",
                   absl::StatusCodeToString(status.code()), ": ", status.message());
  if (absl::IsCancelled(status)) return true;  // training has moved on, or the session closes
  if (absl::IsAborted(status) || absl::IsNotFound(status) || NeedsOwner(status)) {
    options_.log(what);
    absl::MutexLock lock(&mutex_);
    away_ = true;
    rejoin_needed_ = true;
    return true;
  }
  absl::MutexLock lock(&mutex_);
  if (absl::IsDeadlineExceeded(status)) {
    // The other nodes are late; the coordinator is there.
    options_.log(what);
    return true;
  }
  if (absl::IsUnavailable(status)) {
    if (!away_) options_.log(absl::StrCat(what, "; training goes on with fallback plans"));
    away_ = true;
    return false;
  }
  if (absl::IsResourceExhausted(status)) {
    options_.log(what);
    return false;
  }
  // The batch or the telemetry was refused: asking again would not help.
  options_.log(what);
  if (absl::IsInvalidArgument(status)) DropReported(request);
  first_open_step_ = std::max(first_open_step_, step + 1);
  return true;
}

bool NodeSession::Rejoin() {
  // Registering again is harmless and makes a coordinator with an empty store whole.
  v1::RegisterJobRequest registration;
  *registration.mutable_spec() = spec_;
  {
    absl::MutexLock lock(&mutex_);
    registration.set_known_leader_epoch(leader_epoch_);
  }
  absl::StatusOr<v1::RegisterJobResponse> registered =
      client_.RegisterJob(registration, options_.rpc_timeout);
  if (!registered.ok()) return false;
  {
    absl::MutexLock lock(&mutex_);
    spec_fingerprint_ = registered->spec_fingerprint();
    leader_epoch_ = std::max(leader_epoch_, registered->leader_epoch());
  }
  absl::StatusOr<v1::JoinJobResponse> joined = JoinOnce(/*reconnect=*/true, options_.join_poll);
  if (joined.ok()) return Adopt(*joined);
  if (absl::IsDeadlineExceeded(joined.status())) return true;  // the poll itself was the pause
  absl::MutexLock lock(&mutex_);
  if (absl::IsAborted(joined.status())) {
    const auto stale = planner::GetDetail<v1::StaleMember>(joined.status());
    evicted_ = stale.has_value() && stale->evicted();
    health_ = absl::AbortedError(
        absl::StrCat("this node cannot go on in generation ", generation_, " (",
                     std::string(joined.status().message()),
                     "); restart it from the last checkpoint to join the new one"));
  } else if (absl::IsAlreadyExists(joined.status()) || absl::IsInvalidArgument(joined.status())) {
    health_ = joined.status();
  }
  return false;
}

bool NodeSession::Adopt(const v1::JoinJobResponse& joined) {
  absl::MutexLock lock(&mutex_);
  leader_epoch_ = std::max(leader_epoch_, joined.leader_epoch());
  rejoin_needed_ = false;
  bool same = static_cast<size_t>(joined.members_size()) == incarnations_.size();
  for (size_t r = 0; same && r < incarnations_.size(); ++r) {
    same = joined.members(static_cast<int>(r)).incarnation() == incarnations_[r];
    if (!same) {
      health_ = absl::AbortedError(absl::StrCat(
          "the process that held rank ", r, " was replaced (generation ", joined.generation(),
          "); restart this node from the last checkpoint to join the new generation"));
    }
  }
  if (!health_.ok()) return false;
  generation_ = joined.generation();
  away_ = false;
  options_.log(absl::StrCat("job ", spec_.job().name(), ": joined again, generation ", generation_,
                            ", leader epoch ", leader_epoch_));
  return true;
}

void NodeSession::HeartbeatLoop() {
  while (true) {
    v1::HeartbeatRequest request;
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&closing_), heartbeat_)) return;
      *request.mutable_node() = Key();
    }
    absl::StatusOr<v1::HeartbeatResponse> reply = client_.Heartbeat(request, options_.rpc_timeout);
    absl::MutexLock lock(&mutex_);
    if (reply.ok()) {
      leader_epoch_ = std::max(leader_epoch_, reply->leader_epoch());
    } else if ((absl::IsAborted(reply.status()) || absl::IsNotFound(reply.status()) ||
                NeedsOwner(reply.status())) &&
               request.node().generation() == generation_) {
      rejoin_needed_ = true;
      away_ = true;
    }
  }
}

}  // namespace sparsebalance
