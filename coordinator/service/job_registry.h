// All jobs that this process answers for, and the latency profiles they share: the whole service
// beneath the RPC layer. Thread-safe; answers and waits as in job.h.
//
// Which jobs those are is up to JobClaims: all, where the process is alone; where replicas share a
// store, those it has claimed. A job is claimed, and taken up from the store, by RegisterJob. Every
// other call for a job that is not held gets UNAVAILABLE (NotOwner), which says where to go.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/service/job.h"
#include "coordinator/service/namespace_quota.h"
#include "coordinator/store/job_claims.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

using RegisterDone = absl::AnyInvocable<void(absl::StatusOr<v1::RegisterJobResponse>)>;

class JobRegistry {
 public:
  // Everything that the registry works with; all outlive it.
  struct Parts {
    const ServiceOptions* options;
    const QuotaTable* quotas;
    Store* store;
    StoreWriter* writer;
    JobClaims* claims;
    Scheduler* scheduler;
    PlanExecutor* planner;     // makes plans
    PlanExecutor* background;  // for what may wait for the store; stopped before the registry goes
    ServiceEvents* events;
    std::string version;  // of the program, for answers
  };

  // Where the process is alone, takes up what the store holds. Its errors are the store's.
  static absl::StatusOr<std::unique_ptr<JobRegistry>> Open(Parts parts);
  ~JobRegistry();  // Shutdown()

  JobRegistry(const JobRegistry&) = delete;
  JobRegistry& operator=(const JobRegistry&) = delete;

  // The RPCs of the same names; codes as in coordinator.proto.
  void RegisterJob(const v1::RegisterJobRequest& request, RegisterDone done);
  CancelWait JoinJob(const v1::JoinJobRequest& request, JoinDone done);
  CancelWait ExchangeStep(const v1::ExchangeStepRequest& request, ExchangeDone done);
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request);
  absl::StatusOr<v1::LeaveJobResponse> LeaveJob(const v1::LeaveJobRequest& request);
  absl::StatusOr<v1::PutCoverageResponse> PutCoverage(const v1::PutCoverageRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::GetJobResponse> GetJob(const v1::GetJobRequest& request);
  absl::StatusOr<v1::GetPlanResponse> GetPlan(const v1::GetPlanRequest& request);
  CancelWait WatchJob(const v1::WatchJobRequest& request, WatchDone done);
  absl::StatusOr<v1::PutProfileResponse> PutProfile(const v1::PutProfileRequest& request);
  absl::StatusOr<v1::GetProfileResponse> GetProfile(const v1::GetProfileRequest& request);
  absl::StatusOr<v1::EvictNodeResponse> EvictNode(const v1::EvictNodeRequest& request);
  absl::StatusOr<v1::RemoveJobResponse> RemoveJob(const v1::RemoveJobRequest& request);

  // Status of every job that is held, for metrics and the overview.
  std::vector<v1::JobStatus> Statuses();
  std::vector<JobFigures> Figures();  // what a scrape needs of them
  // GetJob and the plans that are kept, for the status page. GetJob's errors.
  absl::StatusOr<JobSnapshot> Snapshot(const v1::JobKey& key);
  // Highest leader epoch of the jobs that are held.
  uint64_t HighestEpoch();

  // For JobClaims::OnLost: the process no longer holds the job as it was claimed under that epoch,
  // another may. Ends the job's waits and forgets it. May be called for as long as one likes.
  JobClaims::Lost LostHandler();

  // For a backup: hands everything that was learned to the writer.
  void WriteKnowledge();
  // Takes up a job from a backup under its claim; blocks on the store. ALREADY_EXISTS for a job
  // that is here and does not give way: without `replace`, or with nodes in it.
  absl::Status ImportJob(JobSeed seed, uint64_t above_epoch, bool replace);

  // Stops looking at leases, ends every wait with UNAVAILABLE (RetryLater), refuses later calls
  // with the same, and hands what was learned to the writer. Idempotent.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Shared with what may call while the registry is being destroyed: the sweep's timer and the
  // claims. Held during such a call; taken before every other lock. Background work needs none: its
  // executor is stopped before the registry goes.
  struct SweepGate {
    absl::Mutex mutex;
    JobRegistry* registry ABSL_GUARDED_BY(mutex);  // null: closed
  };
  using ProfileName = std::tuple<std::string, std::string, std::string>;

  explicit JobRegistry(Parts parts);

  // --- Holding jobs (job_registry.cc) ---
  absl::Status LoadAll();
  absl::StatusOr<std::shared_ptr<Job>> LoadJob(StoredJob row);
  void SetProfiles(std::vector<v1::LatencyProfile> profiles) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the job is held under an epoch of at least `known` and what is stored of it is here.
  bool HeldAndLoaded(const JobId& id, uint64_t known) ABSL_LOCKS_EXCLUDED(mutex_);
  // Claims the job and takes up what is stored of it. Blocks on the store.
  absl::Status Claim(const JobId& id, uint64_t known) ABSL_LOCKS_EXCLUDED(mutex_);
  void Lost(const JobId& id, uint64_t epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<v1::RegisterJobResponse> RegisterHeld(const v1::RegisterJobRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<Job>> Replace(const std::shared_ptr<Job>& job,
                                               const v1::JobSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteSeed(const JobId& id, const JobSeed& seed, uint64_t epoch);
  std::optional<v1::LatencyProfile> ProfileFor(const v1::JobSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NamespaceUsage UsageOf(const std::string& ns, const Job* without)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Calls (job_registry_calls.cc) ---
  absl::StatusOr<std::shared_ptr<Job>> Find(const v1::JobKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<Job>> FindFor(const v1::NodeKey& node) ABSL_LOCKS_EXCLUDED(mutex_);
  // A client knows of a higher epoch than ours: the claim is looked after, and the client told to
  // call again.
  absl::Status Outdated(const JobId& id, uint64_t known);
  std::vector<std::shared_ptr<Job>> Jobs() ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Upkeep (job_registry_sweep.cc) ---
  void ScheduleSweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sweep() ABSL_LOCKS_EXCLUDED(mutex_);
  void CountBytes(const std::vector<std::shared_ptr<Job>>& jobs) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(std::shared_ptr<Job> job, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where replicas share the store: takes note of profiles that others stored, and forgets jobs
  // that nobody has claimed for as long as jobs are kept. Blocks on the store.
  void LookAfterShared() ABSL_LOCKS_EXCLUDED(mutex_);
  // False where there is no room for it now; `work` is then dropped.
  bool RunInBackground(PlanExecutor::Task work);

  const Parts parts_;
  const JobEnvironment environment_;
  const std::shared_ptr<SweepGate> gate_;
  absl::Mutex mutex_;  // taken before a job's
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::map<JobId, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  // Where jobs are shared: those taken up from the store, and the epoch of the claim at that time.
  // Under another epoch somebody else may have had the job in between.
  std::map<JobId, uint64_t> loaded_ ABSL_GUARDED_BY(mutex_);
  std::map<ProfileName, v1::LatencyProfile> profiles_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> bytes_ ABSL_GUARDED_BY(mutex_);  // by namespace, last counted
  // Where jobs are shared: stored jobs that nobody holds, as last seen.
  struct Unclaimed {
    absl::Time since;
    StoredJob job;
  };
  std::map<JobId, Unclaimed> unclaimed_ ABSL_GUARDED_BY(mutex_);
  Scheduler::TimerId sweep_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_sweep_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_look_ ABSL_GUARDED_BY(mutex_);
  bool looking_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sparsebalance
