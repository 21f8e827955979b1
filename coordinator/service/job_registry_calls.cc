// The calls that need a job that is held already.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_memory.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/job_registry.h"
#include "coordinator/service/log_fields.h"
#include "coordinator/service/request_validation.h"
#include "coordinator/service/retry_later.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

absl::StatusOr<std::shared_ptr<Job>> JobRegistry::Find(const v1::JobKey& key) {
  if (absl::Status status = ValidateJobKey(key, "job"); !status.ok()) return status;
  const JobId id = JobId::From(key);
  const auto epoch = parts_.claims->Held(id);
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (!epoch.ok()) return epoch.status();
  if (parts_.claims->shared()) {
    const auto loaded = loaded_.find(id);
    if (loaded == loaded_.end() || loaded->second != *epoch) return NotHeldByAnyone(id);
  }
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) {
    return absl::NotFoundError(
        absl::StrCat("job ", id.ToString(), " is not known to this coordinator; register it"));
  }
  job->second->RaiseEpoch(*epoch);
  return job->second;
}

absl::Status JobRegistry::Outdated(const JobId& id, uint64_t known) {
  if (absl::Status status = CheckKnownEpoch(known); !status.ok()) return status;
  if (!parts_.claims->shared()) return Claim(id, known);
  RunInBackground([this, id, known] {
    if (const absl::Status status = Claim(id, known); !status.ok()) {
      LogWarn({id.ToString()}, "a client knows of leader epoch {}: {}", known,
              std::string(status.message()));
    }
  });
  return RetryLater(
      absl::StatusCode::kUnavailable,
      absl::StrCat("job ", id.ToString(), " has been answered for under leader epoch ", known,
                   ", which this replica does not know of; call again"),
      parts_.options->overload_retry);
}

absl::StatusOr<std::shared_ptr<Job>> JobRegistry::FindFor(const v1::NodeKey& node) {
  if (absl::Status status = ValidateNodeKey(node); !status.ok()) return status;
  auto job = Find(node.job());
  if (!job.ok() || node.known_leader_epoch() <= (*job)->epoch()) return job;
  if (absl::Status status = Outdated((*job)->id(), node.known_leader_epoch()); !status.ok()) {
    return status;
  }
  return Find(node.job());
}

CancelWait JobRegistry::JoinJob(const v1::JoinJobRequest& request, JoinDone done) {
  auto job = Find(request.job());
  if (job.ok() && request.known_leader_epoch() > (*job)->epoch()) {
    const absl::Status status = Outdated((*job)->id(), request.known_leader_epoch());
    job = status.ok() ? Find(request.job()) : absl::StatusOr<std::shared_ptr<Job>>(status);
  }
  if (!job.ok()) {
    done(job.status());
    return [] {};
  }
  return (*job)->Join(request, std::move(done));
}

CancelWait JobRegistry::ExchangeStep(const v1::ExchangeStepRequest& request, ExchangeDone done) {
  const auto job = FindFor(request.node());
  absl::Status status = job.status();
  if (status.ok()) {
    const std::string& ns = (*job)->id().ns;
    NamespaceQuota quota;
    quota.max_sequences = parts_.quotas->For(ns).max_sequences;
    status = CheckQuota(ns, quota, {},
                        {0, 0, static_cast<uint64_t>(request.batch().sequences_size()), 0});
  }
  if (!status.ok()) {
    done(status);
    return [] {};
  }
  return (*job)->ExchangeStep(request, std::move(done));
}

absl::StatusOr<v1::HeartbeatResponse> JobRegistry::Heartbeat(const v1::HeartbeatRequest& request) {
  const auto job = FindFor(request.node());
  if (!job.ok()) return job.status();
  return (*job)->Heartbeat(request);
}

absl::StatusOr<v1::LeaveJobResponse> JobRegistry::LeaveJob(const v1::LeaveJobRequest& request) {
  const auto job = FindFor(request.node());
  if (!job.ok()) return job.status();
  if (absl::Status status = (*job)->Leave(request); !status.ok()) return status;
  return v1::LeaveJobResponse();
}

absl::StatusOr<v1::PutCoverageResponse> JobRegistry::PutCoverage(
    const v1::PutCoverageRequest& request) {
  const auto job = FindFor(request.node());
  if (!job.ok()) return job.status();
  const std::string& ns = (*job)->id().ns;
  NamespaceUsage used;
  {
    absl::MutexLock lock(&mutex_);
    const auto bytes = bytes_.find(ns);
    if (bytes != bytes_.end()) used.bytes = bytes->second;
  }
  const uint64_t more =
      static_cast<uint64_t>(request.entries_size()) * planner::CoverageMemory::kBytesPerSequence;
  if (absl::Status status = CheckQuota(ns, parts_.quotas->For(ns), used, {0, 0, 0, more});
      !status.ok()) {
    return status;
  }
  return (*job)->PutCoverage(request);
}

absl::StatusOr<v1::ListJobsResponse> JobRegistry::ListJobs(const v1::ListJobsRequest& request) {
  const auto wanted = [&](const std::string& ns) {
    return request.namespace_().empty() || ns == request.namespace_();
  };
  std::map<JobId, v1::JobSummary> summaries;
  for (const std::shared_ptr<Job>& job : Jobs()) {
    if (wanted(job->id().ns)) summaries[job->id()] = job->Summary();
  }
  // What other replicas answer for, by name and address; they know the rest.
  for (const JobClaims::Owned& owned : parts_.claims->Owners()) {
    if (!wanted(owned.id.ns) || summaries.contains(owned.id)) continue;
    v1::JobSummary& summary = summaries[owned.id];
    *summary.mutable_job() = owned.id.ToProto();
    summary.set_owner_address(owned.address);
  }
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, unclaimed] : unclaimed_) {
      if (!wanted(id.ns) || summaries.contains(id)) continue;
      v1::JobSummary& summary = summaries[id];
      *summary.mutable_job() = id.ToProto();
      summary.set_state(unclaimed.job.finished ? v1::JOB_STATE_FINISHED : v1::JOB_STATE_JOINING);
      summary.set_generation(unclaimed.job.generation);
      summary.set_ranks(RankLayout(unclaimed.job.spec.parallelism()).count());
    }
  }
  v1::ListJobsResponse answer;
  for (auto& [id, summary] : summaries) *answer.add_jobs() = std::move(summary);
  answer.set_leader_epoch(HighestEpoch());
  answer.set_server_version(parts_.version);
  return answer;
}

std::vector<v1::JobStatus> JobRegistry::Statuses() {
  std::vector<v1::JobStatus> statuses;
  for (const std::shared_ptr<Job>& job : Jobs()) statuses.push_back(job->Status());
  return statuses;
}

std::vector<JobFigures> JobRegistry::Figures() {
  std::vector<JobFigures> figures;
  for (const std::shared_ptr<Job>& job : Jobs()) figures.push_back(job->Figures());
  return figures;
}

absl::StatusOr<JobSnapshot> JobRegistry::Snapshot(const v1::JobKey& key) {
  const auto job = Find(key);
  if (!job.ok()) return job.status();
  return (*job)->Snapshot();
}

uint64_t JobRegistry::HighestEpoch() {
  uint64_t highest = parts_.claims->shared() ? 0 : parts_.claims->Held(JobId()).value_or(0);
  for (const std::shared_ptr<Job>& job : Jobs()) highest = std::max(highest, job->epoch());
  return highest;
}

absl::StatusOr<v1::GetJobResponse> JobRegistry::GetJob(const v1::GetJobRequest& request) {
  const auto job = Find(request.job());
  if (!job.ok()) return job.status();
  v1::GetJobResponse answer;
  *answer.mutable_status() = (*job)->Status();
  return answer;
}

absl::StatusOr<v1::GetPlanResponse> JobRegistry::GetPlan(const v1::GetPlanRequest& request) {
  const auto job = Find(request.job());
  if (!job.ok()) return job.status();
  return (*job)->GetPlan(request.step(), request.explain());
}

CancelWait JobRegistry::WatchJob(const v1::WatchJobRequest& request, WatchDone done) {
  const auto job = Find(request.job());
  if (!job.ok()) {
    done(job.status());
    return [] {};
  }
  return (*job)->Watch(request.after_revision(),
                       absl::Milliseconds(static_cast<double>(request.wait_ms())), std::move(done));
}

absl::StatusOr<v1::PutProfileResponse> JobRegistry::PutProfile(
    const v1::PutProfileRequest& request) {
  v1::LatencyProfile profile = request.profile();
  v1::ProfileKey* key = profile.mutable_key();
  if (key->namespace_().empty()) key->set_namespace_("default");
  if (absl::Status status = ValidateProfile(profile); !status.ok()) return status;
  v1::PutProfileResponse answer;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    if (absl::Status status = parts_.writer->Write(StoreProfile{profile}); !status.ok()) {
      parts_.events->StoreWriteFailed();
      return status;
    }
    v1::LatencyProfile& known =
        profiles_[{key->namespace_(), key->device_class(), key->model_class()}];
    answer.set_replaced(known.has_key());
    known = profile;
  }
  for (const std::shared_ptr<Job>& job : Jobs()) job->OfferProfile(profile);
  return answer;
}

absl::StatusOr<v1::GetProfileResponse> JobRegistry::GetProfile(
    const v1::GetProfileRequest& request) {
  const std::string ns =
      request.key().namespace_().empty() ? "default" : request.key().namespace_();
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const auto profile =
      profiles_.find({ns, request.key().device_class(), request.key().model_class()});
  if (profile == profiles_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "no latency profile of device class '", request.key().device_class(), "' and model class '",
        request.key().model_class(), "' in namespace ", ns, "; measure one and put it"));
  }
  v1::GetProfileResponse answer;
  *answer.mutable_profile() = profile->second;
  return answer;
}

absl::StatusOr<v1::EvictNodeResponse> JobRegistry::EvictNode(const v1::EvictNodeRequest& request) {
  if (absl::Status status = ValidateName(request.node_id(), "node_id"); !status.ok()) return status;
  const auto job = Find(request.job());
  if (!job.ok()) return job.status();
  return (*job)->Evict(request);
}

absl::StatusOr<v1::RemoveJobResponse> JobRegistry::RemoveJob(const v1::RemoveJobRequest& request) {
  const auto job = Find(request.job());
  if (!job.ok()) return job.status();
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (!request.force() && (*job)->HasNodes()) {
    return absl::FailedPreconditionError(
        absl::StrCat("nodes are in job ", (*job)->id().ToString(),
                     "; stop them first, or say --force to remove it all the same"));
  }
  Forget(*job, "removed by an operator");
  return v1::RemoveJobResponse();
}

}  // namespace sparsebalance
