#include "coordinator/service/job_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/job_spec.h"
#include "coordinator/service/log_fields.h"
#include "coordinator/service/request_validation.h"
#include "coordinator/service/retry_later.h"
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

// Answers a registration once, also where the work that would have done so is dropped.
class PendingRegistration {
 public:
  explicit PendingRegistration(RegisterDone done, absl::Duration retry)
      : done_(std::move(done)), retry_(retry) {}
  ~PendingRegistration() {
    if (done_) {
      done_(RetryLater(absl::StatusCode::kUnavailable,
                       "the coordinator cannot take the job up now; call again", retry_));
    }
  }

  PendingRegistration(const PendingRegistration&) = delete;
  PendingRegistration& operator=(const PendingRegistration&) = delete;

  void Answer(absl::StatusOr<v1::RegisterJobResponse> answer) {
    std::exchange(done_, nullptr)(std::move(answer));
  }

 private:
  RegisterDone done_;
  const absl::Duration retry_;
};

NamespaceUsage UsageOfSpec(const v1::JobSpec& spec) {
  return {1, RankLayout(spec.parallelism()).count(), spec.global_batch_size(), 0};
}

}  // namespace

JobRegistry::JobRegistry(Parts parts)
    : parts_(std::move(parts)),
      environment_{parts_.options, parts_.claims, parts_.scheduler,
                   parts_.planner, parts_.writer, parts_.events},
      gate_(std::make_shared<SweepGate>()) {
  absl::MutexLock lock(&gate_->mutex);
  gate_->registry = this;
}

absl::StatusOr<std::unique_ptr<JobRegistry>> JobRegistry::Open(Parts parts) {
  std::unique_ptr<JobRegistry> registry(new JobRegistry(std::move(parts)));
  if (!registry->parts_.claims->shared()) {
    if (absl::Status status = registry->LoadAll(); !status.ok()) return status;
  }
  absl::MutexLock lock(&registry->mutex_);
  registry->last_sweep_ = registry->parts_.scheduler->Now();
  registry->last_look_ = absl::InfinitePast();
  registry->ScheduleSweep();
  return registry;
}

JobRegistry::~JobRegistry() { Shutdown(); }

absl::Status JobRegistry::LoadAll() {
  auto profiles = parts_.store->LoadProfiles();
  if (!profiles.ok()) return profiles.status();
  {
    absl::MutexLock lock(&mutex_);
    SetProfiles(*std::move(profiles));
  }
  auto stored = parts_.store->LoadJobs();
  if (!stored.ok()) return stored.status();
  for (StoredJob& row : *stored) {
    const JobId id = row.id;
    auto job = LoadJob(std::move(row));
    if (!job.ok()) return job.status();
    absl::MutexLock lock(&mutex_);
    jobs_[id] = *std::move(job);
  }
  return absl::OkStatus();
}

void JobRegistry::SetProfiles(std::vector<v1::LatencyProfile> profiles) {
  for (v1::LatencyProfile& profile : profiles) {
    const v1::ProfileKey& key = profile.key();
    profiles_[{key.namespace_(), key.device_class(), key.model_class()}] = std::move(profile);
  }
}

absl::StatusOr<std::shared_ptr<Job>> JobRegistry::LoadJob(StoredJob row) {
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
  absl::MutexLock lock(&mutex_);
  seed.knowledge = {ProfileFor(seed.spec), *std::move(latency), *std::move(coverage)};
  std::shared_ptr<Job> job = Job::Create(environment_, std::move(seed));
  if (const auto epoch = parts_.claims->Held(row.id); epoch.ok()) job->RaiseEpoch(*epoch);
  return job;
}

std::optional<v1::LatencyProfile> JobRegistry::ProfileFor(const v1::JobSpec& spec) {
  const auto profile =
      profiles_.find({spec.job().namespace_(), spec.device_class(), spec.model_class()});
  return profile == profiles_.end() ? std::nullopt : std::optional(profile->second);
}

bool JobRegistry::HeldAndLoaded(const JobId& id, uint64_t known) {
  const auto epoch = parts_.claims->Held(id);
  if (!epoch.ok() || *epoch < known) return false;
  if (!parts_.claims->shared()) return true;
  absl::MutexLock lock(&mutex_);
  const auto loaded = loaded_.find(id);
  return loaded != loaded_.end() && loaded->second == *epoch;
}

absl::Status JobRegistry::Claim(const JobId& id, uint64_t known) {
  const auto epoch = parts_.claims->Claim(id, known);
  if (!epoch.ok()) return epoch.status();
  if (!parts_.claims->shared()) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    const auto loaded = loaded_.find(id);
    if (loaded != loaded_.end() && loaded->second == *epoch) return absl::OkStatus();
  }
  // What this process wrote about the job itself, a removal above all, comes first.
  parts_.writer->Flush().IgnoreError();  // noted by the writer
  auto profiles = parts_.store->LoadProfiles();
  if (!profiles.ok()) return profiles.status();
  {
    absl::MutexLock lock(&mutex_);
    SetProfiles(*std::move(profiles));
  }
  auto row = parts_.store->LoadJob(id);
  if (!row.ok()) return row.status();
  std::shared_ptr<Job> job;
  if (row->has_value()) {
    auto made = LoadJob(**std::move(row));
    if (!made.ok()) return made.status();
    job = *std::move(made);
  }
  std::shared_ptr<Job> outdated;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    // Another thread may have been faster, or the claim may be lost again.
    const auto held = parts_.claims->Held(id);
    if (!held.ok()) return held.status();
    if (*held != *epoch) return NotHeldByAnyone(id);
    const auto loaded = loaded_.find(id);
    if (loaded != loaded_.end() && loaded->second == *epoch) return absl::OkStatus();
    if (const auto known_job = jobs_.find(id); known_job != jobs_.end()) {
      outdated = std::move(known_job->second);
      jobs_.erase(known_job);
    }
    if (job != nullptr) jobs_[id] = job;
    loaded_[id] = *epoch;
  }
  if (outdated != nullptr) outdated->Close(NotHeldByAnyone(id));
  LogInfo({id.ToString()}, "answered for by this replica, leader epoch {}", *epoch);
  return absl::OkStatus();
}

void JobRegistry::Lost(const JobId& id, uint64_t epoch) {
  std::shared_ptr<Job> job;
  {
    absl::MutexLock lock(&mutex_);
    const auto loaded = loaded_.find(id);
    if (loaded == loaded_.end() || loaded->second != epoch) return;  // taken up anew since
    loaded_.erase(loaded);
    const auto entry = jobs_.find(id);
    if (entry == jobs_.end()) return;
    job = std::move(entry->second);
    jobs_.erase(entry);
  }
  const auto held = parts_.claims->Held(id);
  job->Close(held.ok() ? NotHeldByAnyone(id) : held.status());
  LogWarn({id.ToString()}, "no longer answered for by this replica");
}

JobClaims::Lost JobRegistry::LostHandler() {
  return [gate = gate_](const JobId& id, uint64_t epoch) {
    absl::MutexLock lock(&gate->mutex);
    if (gate->registry != nullptr) gate->registry->Lost(id, epoch);
  };
}

bool JobRegistry::RunInBackground(PlanExecutor::Task work) {
  // A flow of its own: what waits for the store holds up nothing else that does.
  const PlanExecutor::FlowId flow = parts_.background->NewFlow();
  const bool taken = parts_.background->TrySubmit(flow, std::move(work));
  parts_.background->EndFlow(flow);
  return taken;
}

void JobRegistry::RegisterJob(const v1::RegisterJobRequest& request, RegisterDone done) {
  absl::Status status = ValidateSpec(request.spec(), *parts_.options);
  if (status.ok()) status = CheckKnownEpoch(request.known_leader_epoch());
  if (!status.ok()) {
    done(status);
    return;
  }
  const JobId id = JobId::From(request.spec().job());
  const uint64_t known = request.known_leader_epoch();
  if (HeldAndLoaded(id, known)) {
    done(RegisterHeld(request));
    return;
  }
  auto pending =
      std::make_shared<PendingRegistration>(std::move(done), parts_.options->overload_retry);
  auto work = [this, pending, request, id, known] {
    const absl::Status claimed = Claim(id, known);
    pending->Answer(claimed.ok() ? RegisterHeld(request) : claimed);
  };
  if (parts_.claims->shared()) {
    // Where there is no room, the last owner of `pending` answers.
    RunInBackground(std::move(work));
  } else {
    work();
  }
}

NamespaceUsage JobRegistry::UsageOf(const std::string& ns, const Job* without) {
  NamespaceUsage usage;
  for (auto entry = jobs_.lower_bound({ns, ""}); entry != jobs_.end() && entry->first.ns == ns;
       ++entry) {
    Job& job = *entry->second;
    if (&job == without || job.finished()) continue;
    const NamespaceUsage own = UsageOfSpec(job.spec());
    usage.jobs += own.jobs;
    usage.ranks += own.ranks;
    usage.sequences += own.sequences;
  }
  const auto bytes = bytes_.find(ns);
  if (bytes != bytes_.end()) usage.bytes = bytes->second;
  return usage;
}

absl::StatusOr<v1::RegisterJobResponse> JobRegistry::RegisterHeld(
    const v1::RegisterJobRequest& request) {
  const v1::JobSpec spec = NormalizedSpec(request.spec());
  const JobId id = JobId::From(spec.job());
  v1::RegisterJobResponse answer;
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const auto epoch = parts_.claims->Held(id);
  if (!epoch.ok()) return epoch.status();
  const auto known = jobs_.find(id);
  std::shared_ptr<Job> job = known == jobs_.end() ? nullptr : known->second;
  const bool same = job != nullptr && job->fingerprint() == SpecFingerprint(spec);
  if (!same || job->finished()) {
    // What the job has already does not count twice; one that was finished counts again.
    NamespaceUsage more = UsageOfSpec(spec);
    if (absl::Status status =
            CheckQuota(id.ns, parts_.quotas->For(id.ns), UsageOf(id.ns, job.get()), more);
        !status.ok()) {
      return status;
    }
  }
  if (job == nullptr) {
    if (jobs_.size() >= parts_.options->max_jobs) {
      return absl::ResourceExhaustedError(
          absl::StrCat("this coordinator has ", parts_.options->max_jobs,
                       " jobs, its limit; raise --max-jobs or use another coordinator"));
    }
    JobSeed seed;
    seed.spec = spec;
    seed.knowledge.profile = ProfileFor(spec);
    job = Job::Create(environment_, std::move(seed));
    job->RaiseEpoch(*epoch);
    job->WriteJob();
    jobs_[id] = job;
    answer.set_created(true);
    LogInfo({id.ToString()}, "registered, {} ranks, policy {}", job->rank_count(),
            spec.plan().policy().empty() ? "sparsebalance" : spec.plan().policy());
  } else if (!same) {
    if (job->HasNodes()) return SpecConflict(*job, spec);
    auto replaced = Replace(job, spec);
    if (!replaced.ok()) return replaced.status();
    job = *std::move(replaced);
    jobs_[id] = job;
    answer.set_created(true);
  }
  job->RaiseEpoch(*epoch);
  answer.set_spec_fingerprint(job->fingerprint());
  answer.set_leader_epoch(*epoch);
  answer.set_server_version(parts_.version);
  return answer;
}

absl::StatusOr<std::shared_ptr<Job>> JobRegistry::Replace(const std::shared_ptr<Job>& job,
                                                          const v1::JobSpec& spec) {
  LogInfo({job->id().ToString()}, "another spec takes the place of the old one; it differs in {}",
          absl::StrJoin(DifferingFields(job->spec(), spec), ", "));
  job->Close(absl::AbortedError(
      absl::StrCat("job ", job->id().ToString(), " was registered with another spec")));
  const JobSeed old = job->Export();
  JobSeed seed = CarryOver(old, spec);
  seed.knowledge.profile = ProfileFor(spec);
  WriteSeed(job->id(), seed, job->epoch());
  return Job::Create(environment_, std::move(seed));
}

void JobRegistry::WriteSeed(const JobId& id, const JobSeed& seed, uint64_t epoch) {
  // Nothing of the old job may come back after a restart that the new one does not have.
  std::vector<StoreWrite> writes;
  writes.push_back(sparsebalance::RemoveJob{id, epoch});
  writes.push_back(StoreJob{{id, seed.spec, seed.generation, seed.finished}, epoch});
  for (const v1::ConsumedBatch& batch : seed.consumed) {
    writes.push_back(StoreConsumed{id, batch, epoch});
  }
  if (!seed.knowledge.latency_state.empty()) {
    writes.push_back(StoreLatencyState{id, seed.knowledge.latency_state, epoch});
  }
  for (const CoverageChunk& chunk : seed.knowledge.coverage) {
    writes.push_back(StoreCoverage{id, {chunk}, epoch});
  }
  for (StoreWrite& write : writes) {
    if (absl::Status status = parts_.writer->Write(std::move(write)); !status.ok()) {
      LogError({id.ToString()}, "not stored: {}", std::string(status.message()));
      parts_.events->StoreWriteFailed();
    }
  }
}

std::vector<std::shared_ptr<Job>> JobRegistry::Jobs() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Job>> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [id, job] : jobs_) jobs.push_back(job);
  return jobs;
}

void JobRegistry::WriteKnowledge() {
  for (const std::shared_ptr<Job>& job : Jobs()) job->WriteKnowledge();
}

absl::Status JobRegistry::ImportJob(JobSeed seed, uint64_t above_epoch, bool replace) {
  if (absl::Status status = ValidateSpec(seed.spec, *parts_.options); !status.ok()) return status;
  seed.spec = NormalizedSpec(std::move(seed.spec));
  const JobId id = JobId::From(seed.spec.job());
  if (absl::Status status = CheckKnownEpoch(above_epoch); !status.ok()) return status;
  if (absl::Status status = Claim(id, above_epoch + 1); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const auto epoch = parts_.claims->Held(id);
  if (!epoch.ok()) return epoch.status();
  if (const auto known = jobs_.find(id); known != jobs_.end()) {
    if (!replace || known->second->HasNodes()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "job ", id.ToString(), " is here already",
          known->second->HasNodes() ? ", with nodes in it; remove it first, or leave it out"
                                    : "; say --replace to let the backup take its place"));
    }
    known->second->Close(
        absl::AbortedError(absl::StrCat("job ", id.ToString(), " was restored from a backup")));
  }
  seed.knowledge.profile = ProfileFor(seed.spec);
  WriteSeed(id, seed, *epoch);
  auto job = Job::Create(environment_, std::move(seed));
  job->RaiseEpoch(*epoch);
  jobs_[id] = std::move(job);
  LogInfo({id.ToString()}, "restored from a backup");
  return absl::OkStatus();
}

void JobRegistry::Shutdown() {
  std::vector<std::shared_ptr<Job>> jobs;
  const absl::Status why = RetryLater(absl::StatusCode::kUnavailable,
                                      "the coordinator is shutting down; call again later",
                                      parts_.options->shutdown_retry);
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
