// Upkeep: leases, quotas of memory, jobs that nobody needs any more.

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/job_registry.h"
#include "coordinator/service/log_fields.h"

namespace sparsebalance {

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
  bool look = false;
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
    look = parts_.claims->shared() && !looking_ &&
           now - last_look_ >= parts_.options->shared_look_interval;
    if (look) {
      looking_ = true;
      last_look_ = now;
    }
  }
  const std::vector<std::shared_ptr<Job>> jobs = Jobs();
  for (const std::shared_ptr<Job>& job : jobs) {
    if (!job->Sweep(now, stalled)) continue;
    absl::MutexLock lock(&mutex_);
    // A node may have joined since.
    if (job->HasNodes()) continue;
    Forget(job,
           absl::StrCat("no node for ",
                        absl::FormatDuration(job->finished() ? parts_.options->finished_retention
                                                             : parts_.options->job_retention)));
  }
  CountBytes(jobs);
  if (look && !RunInBackground([this] { LookAfterShared(); })) {
    absl::MutexLock lock(&mutex_);
    looking_ = false;
  }
  absl::MutexLock lock(&mutex_);
  if (closed_.ok()) ScheduleSweep();
}

void JobRegistry::CountBytes(const std::vector<std::shared_ptr<Job>>& jobs) {
  std::map<std::string, uint64_t> bytes;
  for (const std::shared_ptr<Job>& job : jobs) bytes[job->id().ns] += job->StateBytes();
  for (const std::shared_ptr<Job>& job : jobs) {
    const std::string& ns = job->id().ns;
    job->SetMemoryFull(bytes[ns] >= parts_.quotas->For(ns).max_bytes);
  }
  absl::MutexLock lock(&mutex_);
  bytes_ = std::move(bytes);
}

void JobRegistry::Forget(std::shared_ptr<Job> job, const std::string& why) {
  const JobId id = job->id();
  const auto entry = jobs_.find(id);
  if (entry == jobs_.end() || entry->second != job) return;  // another has taken its place
  job->Close(absl::NotFoundError(absl::StrCat("job ", id.ToString(), " was forgotten: ", why)));
  jobs_.erase(entry);
  // The write, not the RPC of that name.
  const sparsebalance::RemoveJob removal{id, job->epoch()};
  if (absl::Status status = parts_.writer->Write(removal); !status.ok()) {
    parts_.events->StoreWriteFailed();
  }
  LogInfo({id.ToString()}, "forgotten, {}", why);
  if (!parts_.claims->shared()) return;
  // The claim goes once nothing is stored any more: until then nobody else may take the job up.
  loaded_.erase(id);
  RunInBackground([this, id] {
    parts_.writer->Flush().IgnoreError();  // noted by the writer
    {
      absl::MutexLock lock(&mutex_);
      if (loaded_.contains(id)) return;  // registered again
    }
    if (absl::Status status = parts_.claims->Release(id); !status.ok()) {
      LogWarn({id.ToString()}, "its claim stays until the lease ends: {}",
              std::string(status.message()));
    }
  });
}

void JobRegistry::LookAfterShared() {
  std::vector<JobId> expired;
  if (auto profiles = parts_.store->LoadProfiles(); profiles.ok()) {
    absl::MutexLock lock(&mutex_);
    SetProfiles(*std::move(profiles));
  }
  if (const auto stored = parts_.store->LoadJobs(); stored.ok()) {
    std::set<JobId> claimed;
    for (const JobClaims::Owned& owned : parts_.claims->Owners()) claimed.insert(owned.id);
    absl::MutexLock lock(&mutex_);
    const absl::Time now = parts_.scheduler->Now();
    std::map<JobId, Unclaimed> unclaimed;
    for (const StoredJob& job : *stored) {
      if (claimed.contains(job.id) || loaded_.contains(job.id)) continue;
      const auto known = unclaimed_.find(job.id);
      const absl::Time since = known == unclaimed_.end() ? now : known->second.since;
      unclaimed[job.id] = {since, job};
      const absl::Duration kept =
          job.finished ? parts_.options->finished_retention : parts_.options->job_retention;
      if (now - since > kept) expired.push_back(job.id);
    }
    unclaimed_ = std::move(unclaimed);
  }
  for (const JobId& id : expired) {
    if (!Claim(id, 0).ok()) continue;  // somebody else was faster, or will be
    absl::MutexLock lock(&mutex_);
    const auto job = jobs_.find(id);
    if (job != jobs_.end() && !job->second->HasNodes())
      Forget(job->second, "nobody answered for it");
  }
  absl::MutexLock lock(&mutex_);
  looking_ = false;
}

}  // namespace sparsebalance
