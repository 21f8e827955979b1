#include "coordinator/service/job_registry.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/job_spec.h"
#include "coordinator/service/request_validation.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

absl::Status SpecConflict(const Job& job, const v1::JobSpec& offered) {
  v1::SpecConflict detail;
  *detail.mutable_job() = job.id().ToProto();
  detail.set_registered_fingerprint(job.fingerprint());
  detail.set_offered_fingerprint(SpecFingerprint(offered));
  for (std::string& field : DifferingFields(job.spec(), offered)) {
    detail.add_differing_fields(std::move(field));
  }
  absl::Status status = absl::AlreadyExistsError(
      absl::StrCat("job ", job.id().ToString(), " is live with another spec; it differs in ",
                   absl::StrJoin(detail.differing_fields(), ", "),
                   "; use another name, or register again once its nodes have left"));
  planner::AttachDetail(status, detail);
  return status;
}

// What of the old job's past still holds under the new spec.
JobSeed CarryOver(JobSeed seed, const v1::JobSpec& spec) {
  const v1::JobSpec old = std::move(seed.spec);
  seed.spec = spec;
  seed.finished = false;
  const bool same_blocks = old.plan().block_tokens() == spec.plan().block_tokens();
  if (old.dataset_fingerprint() != spec.dataset_fingerprint()) {
    seed.consumed.clear();
    seed.knowledge.coverage.clear();
  }
  if (!same_blocks) seed.knowledge.coverage.clear();
  if (!same_blocks || old.device_class() != spec.device_class() ||
      old.model_class() != spec.model_class() || old.num_layers() != spec.num_layers() ||
      old.parallelism().SerializeAsString() != spec.parallelism().SerializeAsString()) {
    seed.knowledge.latency_state.clear();
  }
  return seed;
}

}  // namespace

JobRegistry::JobRegistry(Parts parts)
    : parts_(std::move(parts)),
      environment_{parts_.options,  parts_.epoch,  parts_.scheduler,
                   parts_.executor, parts_.writer, parts_.events},
      gate_(std::make_shared<SweepGate>()) {
  absl::MutexLock lock(&gate_->mutex);
  gate_->registry = this;
}

absl::StatusOr<std::unique_ptr<JobRegistry>> JobRegistry::Open(Parts parts) {
  std::unique_ptr<JobRegistry> registry(new JobRegistry(std::move(parts)));
  if (absl::Status status = registry->Load(); !status.ok()) return status;
  absl::MutexLock lock(&registry->mutex_);
  registry->last_sweep_ = registry->parts_.scheduler->Now();
  registry->ScheduleSweep();
  return registry;
}

JobRegistry::~JobRegistry() { Shutdown(); }

absl::Status JobRegistry::Load() {
  absl::MutexLock lock(&mutex_);
  auto profiles = parts_.store->LoadProfiles();
  if (!profiles.ok()) return profiles.status();
  for (v1::LatencyProfile& profile : *profiles) {
    const v1::ProfileKey& key = profile.key();
    profiles_[{key.namespace_(), key.device_class(), key.model_class()}] = std::move(profile);
  }
  auto stored = parts_.store->LoadJobs();
  if (!stored.ok()) return stored.status();
  for (StoredJob& row : *stored) {
    auto consumed = parts_.store->LoadConsumed(row.id);
    if (!consumed.ok()) return consumed.status();
    auto latency = parts_.store->LoadLatencyState(row.id);
    if (!latency.ok()) return latency.status();
    auto coverage = parts_.store->LoadCoverage(row.id);
    if (!coverage.ok()) return coverage.status();
    JobSeed seed;
    seed.spec = std::move(row.spec);
    seed.generation = row.generation;
    seed.finished = row.finished;
    seed.consumed = *std::move(consumed);
    seed.knowledge = {ProfileFor(seed.spec), *std::move(latency), *std::move(coverage)};
    jobs_[row.id] = Job::Create(environment_, std::move(seed));
  }
  return absl::OkStatus();
}

std::optional<v1::LatencyProfile> JobRegistry::ProfileFor(const v1::JobSpec& spec) {
  const auto profile =
      profiles_.find({spec.job().namespace_(), spec.device_class(), spec.model_class()});
  return profile == profiles_.end() ? std::nullopt : std::optional(profile->second);
}

absl::StatusOr<v1::RegisterJobResponse> JobRegistry::RegisterJob(
    const v1::RegisterJobRequest& request) {
  if (absl::Status status = ValidateSpec(request.spec(), *parts_.options); !status.ok()) {
    return status;
  }
  if (absl::Status status = parts_.epoch->Observe(request.known_leader_epoch()); !status.ok()) {
    return status;
  }
  const v1::JobSpec spec = NormalizedSpec(request.spec());
  const JobId id = JobId::From(spec.job());
  v1::RegisterJobResponse answer;
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  std::shared_ptr<Job>& job = jobs_[id];
  if (job == nullptr) {
    if (jobs_.size() > parts_.options->max_jobs) {
      jobs_.erase(id);
      return absl::ResourceExhaustedError(
          absl::StrCat("this coordinator has ", parts_.options->max_jobs,
                       " jobs, its limit; raise --max-jobs or use another coordinator"));
    }
    JobSeed seed;
    seed.spec = spec;
    seed.knowledge.profile = ProfileFor(spec);
    job = Job::Create(environment_, std::move(seed));
    job->WriteJob();
    answer.set_created(true);
    spdlog::info("job {}: registered, {} ranks, policy {}", id.ToString(),
                 RankLayout(spec.parallelism()).count(),
                 spec.plan().policy().empty() ? "sparsebalance" : spec.plan().policy());
  } else if (job->fingerprint() != SpecFingerprint(spec)) {
    if (job->HasNodes()) return SpecConflict(*job, spec);
    auto replaced = Replace(job, spec);
    if (!replaced.ok()) return replaced.status();
    job = *std::move(replaced);
    answer.set_created(true);
  }
  answer.set_spec_fingerprint(job->fingerprint());
  answer.set_leader_epoch(parts_.epoch->current());
  answer.set_server_version(parts_.version);
  return answer;
}

absl::StatusOr<std::shared_ptr<Job>> JobRegistry::Replace(const std::shared_ptr<Job>& job,
                                                          const v1::JobSpec& spec) {
  spdlog::info("job {}: another spec takes the place of the old one; it differs in {}",
               job->id().ToString(), absl::StrJoin(DifferingFields(job->spec(), spec), ", "));
  job->Close(absl::AbortedError(
      absl::StrCat("job ", job->id().ToString(), " was registered with another spec")));
  const JobSeed old = job->Export();
  JobSeed seed = CarryOver(old, spec);
  seed.knowledge.profile = ProfileFor(spec);
  // Nothing of the old job may come back after a restart that the new one does not have.
  std::vector<StoreWrite> writes;
  writes.push_back(RemoveJob{job->id()});
  writes.push_back(StoreJob{{job->id(), spec, seed.generation, /*finished=*/false}});
  for (const v1::ConsumedBatch& batch : seed.consumed) {
    writes.push_back(StoreConsumed{job->id(), batch});
  }
  if (!seed.knowledge.latency_state.empty()) {
    writes.push_back(StoreLatencyState{job->id(), seed.knowledge.latency_state});
  }
  for (const CoverageChunk& chunk : seed.knowledge.coverage) {
    writes.push_back(StoreCoverage{job->id(), {chunk}});
  }
  for (StoreWrite& write : writes) {
    if (absl::Status status = parts_.writer->Write(std::move(write)); !status.ok()) {
      spdlog::error("job {}: not stored: {}", job->id().ToString(), std::string(status.message()));
      parts_.events->StoreWriteFailed();
    }
  }
  return Job::Create(environment_, std::move(seed));
}

absl::StatusOr<std::shared_ptr<Job>> JobRegistry::Find(const v1::JobKey& key) {
  if (absl::Status status = ValidateJobKey(key, "job"); !status.ok()) return status;
  const JobId id = JobId::From(key);
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) {
    return absl::NotFoundError(
        absl::StrCat("job ", id.ToString(), " is not known to this coordinator; register it"));
  }
  return job->second;
}

absl::StatusOr<std::shared_ptr<Job>> JobRegistry::FindFor(const v1::NodeKey& node) {
  if (absl::Status status = ValidateNodeKey(node); !status.ok()) return status;
  if (absl::Status status = parts_.epoch->Observe(node.known_leader_epoch()); !status.ok()) {
    return status;
  }
  return Find(node.job());
}

CancelWait JobRegistry::JoinJob(const v1::JoinJobRequest& request, JoinDone done) {
  if (absl::Status status = parts_.epoch->Observe(request.known_leader_epoch()); !status.ok()) {
    done(status);
    return [] {};
  }
  const auto job = Find(request.job());
  if (!job.ok()) {
    done(job.status());
    return [] {};
  }
  return (*job)->Join(request, std::move(done));
}

CancelWait JobRegistry::ExchangeStep(const v1::ExchangeStepRequest& request, ExchangeDone done) {
  const auto job = FindFor(request.node());
  if (!job.ok()) {
    done(job.status());
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
  return (*job)->PutCoverage(request);
}

std::vector<std::shared_ptr<Job>> JobRegistry::Jobs() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Job>> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [id, job] : jobs_) jobs.push_back(job);
  return jobs;
}

absl::StatusOr<v1::ListJobsResponse> JobRegistry::ListJobs(const v1::ListJobsRequest& request) {
  v1::ListJobsResponse answer;
  for (const std::shared_ptr<Job>& job : Jobs()) {
    if (!request.namespace_().empty() && job->id().ns != request.namespace_()) continue;
    *answer.add_jobs() = job->Summary();
  }
  answer.set_leader_epoch(parts_.epoch->current());
  answer.set_server_version(parts_.version);
  return answer;
}

std::vector<v1::JobStatus> JobRegistry::Statuses() {
  std::vector<v1::JobStatus> statuses;
  for (const std::shared_ptr<Job>& job : Jobs()) statuses.push_back(job->Status());
  return statuses;
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

void JobRegistry::ScheduleSweep() {
  sweep_timer_ = parts_.scheduler->At(parts_.scheduler->Now() + parts_.options->sweep_interval,
                                      [gate = gate_] {
                                        absl::MutexLock lock(&gate->mutex);
                                        if (gate->registry != nullptr) gate->registry->Sweep();
                                      });
}

void JobRegistry::Sweep() {
  absl::Time now;
  absl::Duration stalled;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    now = parts_.scheduler->Now();
    const absl::Duration since = now - last_sweep_;
    if (since > parts_.options->sweep_interval * parts_.options->stall_factor) {
      stalled = since;
      spdlog::warn("the coordinator stood still for {}; leases are extended by it",
                   absl::FormatDuration(since));
    }
    last_sweep_ = now;
  }
  for (const std::shared_ptr<Job>& job : Jobs()) {
    if (!job->Sweep(now, stalled)) continue;
    absl::MutexLock lock(&mutex_);
    // A node may have joined since.
    if (job->HasNodes()) continue;
    job->Close(absl::NotFoundError(absl::StrCat("job ", job->id().ToString(), " was forgotten")));
    jobs_.erase(job->id());
    if (absl::Status status = parts_.writer->Write(RemoveJob{job->id()}); !status.ok()) {
      parts_.events->StoreWriteFailed();
    }
    spdlog::info("job {}: forgotten, no node for {}", job->id().ToString(),
                 absl::FormatDuration(parts_.options->job_retention));
  }
  absl::MutexLock lock(&mutex_);
  if (closed_.ok()) ScheduleSweep();
}

void JobRegistry::Shutdown() {
  std::vector<std::shared_ptr<Job>> jobs;
  absl::Status why = absl::UnavailableError("the coordinator is shutting down; call again later");
  v1::RetryLater detail;
  detail.set_retry_after_ms(
      static_cast<uint64_t>(absl::ToInt64Milliseconds(parts_.options->shutdown_retry)));
  planner::AttachDetail(why, detail);
  {
    // The detector stops first: a node must not be called dead because we are going.
    absl::MutexLock lock(&gate_->mutex);
    gate_->registry = nullptr;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    parts_.scheduler->Cancel(sweep_timer_);
    for (const auto& [id, job] : jobs_) jobs.push_back(job);
  }
  for (const std::shared_ptr<Job>& job : jobs) {
    job->Close(why);
    job->WriteKnowledge();
  }
}

}  // namespace sparsebalance
