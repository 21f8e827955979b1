// All jobs of a coordinator, and the latency profiles they share: the whole service beneath the RPC
// layer. Thread-safe; answers and waits as in job.h.
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
#include "coordinator/service/leader_epoch.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

class JobRegistry {
 public:
  // Everything that the registry works with; all outlive it.
  struct Parts {
    const ServiceOptions* options;
    Store* store;
    StoreWriter* writer;
    LeaderEpoch* epoch;
    Scheduler* scheduler;
    PlanExecutor* executor;
    ServiceEvents* events;
    std::string version;  // of the program, for answers
  };

  // Takes up what the store holds. Its errors are the store's.
  static absl::StatusOr<std::unique_ptr<JobRegistry>> Open(Parts parts);
  ~JobRegistry();  // Shutdown()

  JobRegistry(const JobRegistry&) = delete;
  JobRegistry& operator=(const JobRegistry&) = delete;

  // The RPCs of the same names; codes as in coordinator.proto.
  absl::StatusOr<v1::RegisterJobResponse> RegisterJob(const v1::RegisterJobRequest& request);
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

  // Status of every job, for metrics and the overview.
  std::vector<v1::JobStatus> Statuses();

  // Stops looking at leases, ends every wait with UNAVAILABLE (RetryLater), refuses later calls
  // with the same, and hands what was learned to the writer. Idempotent.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Shared with the sweep's timer, which may fire while the registry is being destroyed. Held
  // during a sweep; taken before every other lock.
  struct SweepGate {
    absl::Mutex mutex;
    JobRegistry* registry ABSL_GUARDED_BY(mutex);  // null: closed
  };
  using ProfileName = std::tuple<std::string, std::string, std::string>;

  explicit JobRegistry(Parts parts);

  absl::Status Load();
  absl::StatusOr<std::shared_ptr<Job>> Find(const v1::JobKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<Job>> FindFor(const v1::NodeKey& node) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<Job>> Replace(const std::shared_ptr<Job>& job,
                                               const v1::JobSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<v1::LatencyProfile> ProfileFor(const v1::JobSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::shared_ptr<Job>> Jobs() ABSL_LOCKS_EXCLUDED(mutex_);
  void ScheduleSweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sweep() ABSL_LOCKS_EXCLUDED(mutex_);

  const Parts parts_;
  const JobEnvironment environment_;
  const std::shared_ptr<SweepGate> gate_;
  absl::Mutex mutex_;  // taken before a job's
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::map<JobId, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<ProfileName, v1::LatencyProfile> profiles_ ABSL_GUARDED_BY(mutex_);
  Scheduler::TimerId sweep_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_sweep_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
