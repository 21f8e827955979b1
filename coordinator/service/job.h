// One job: who is in it, what they ask for, what is known about it.
//
// Everything is thread-safe. Answers are given through completions, each called exactly once,
// possibly before the call that took it returns, and never under a lock. Calls that may wait return
// a function that ends the wait with CANCELLED if it is still on; it may be called at any time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/consumed_journal.h"
#include "coordinator/service/deferred.h"
#include "coordinator/service/job_epoch.h"
#include "coordinator/service/job_figures.h"
#include "coordinator/service/job_knowledge.h"
#include "coordinator/service/job_meter.h"
#include "coordinator/service/job_spec.h"
#include "coordinator/service/log_fields.h"
#include "coordinator/service/membership.h"
#include "coordinator/service/plan_executor.h"
#include "coordinator/service/plan_ring.h"
#include "coordinator/service/scheduler.h"
#include "coordinator/service/service_events.h"
#include "coordinator/service/service_options.h"
#include "coordinator/service/step_barrier.h"
#include "coordinator/service/step_history.h"
#include "coordinator/store/job_claims.h"
#include "coordinator/store/store_writer.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// What a job needs of the coordinator around it. All outlive the job.
struct JobEnvironment {
  const ServiceOptions* options;
  JobClaims* claims;
  Scheduler* scheduler;
  PlanExecutor* executor;
  StoreWriter* store;
  ServiceEvents* events;
};

// What a job starts from: a new one from its spec, one from before a restart from the store.
struct JobSeed {
  v1::JobSpec spec;  // normalized and valid
  uint64_t generation = 0;
  bool finished = false;
  std::vector<v1::ConsumedBatch> consumed;  // as stored
  KnowledgeSeed knowledge;
};

// What the status page shows of a job, all of one moment.
struct JobSnapshot {
  v1::JobStatus status;
  std::vector<std::shared_ptr<const PlannedStep>> plans;  // that are kept, oldest first
};

using CancelWait = std::function<void()>;
// A JoinJobResponse as it goes over the wire: one for all nodes that wait for a generation, for it
// grows with the ranks and all are told at the same moment.
using JoinAnswer = std::shared_ptr<const std::string>;
using JoinDone = absl::AnyInvocable<void(absl::StatusOr<JoinAnswer>)>;
using WatchDone = absl::AnyInvocable<void(absl::StatusOr<v1::WatchJobResponse>)>;

class Job : public std::enable_shared_from_this<Job> {
 public:
  static std::shared_ptr<Job> Create(const JobEnvironment& environment, JobSeed seed);
  ~Job();

  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const JobId& id() const { return id_; }
  const v1::JobSpec& spec() const { return spec_; }
  uint64_t fingerprint() const { return fingerprint_; }
  uint32_t rank_count() const { return layout_.count(); }

  // The epoch under which the process holds the job, as the registry last found it.
  void RaiseEpoch(uint64_t epoch) { epoch_.RaiseTo(epoch); }
  uint64_t epoch() const { return epoch_.current(); }

  // The RPCs of the same names; codes as in coordinator.proto.
  CancelWait Join(const v1::JoinJobRequest& request, JoinDone done);
  CancelWait ExchangeStep(const v1::ExchangeStepRequest& request, ExchangeDone done);
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request);
  absl::Status Leave(const v1::LeaveJobRequest& request);
  absl::StatusOr<v1::EvictNodeResponse> Evict(const v1::EvictNodeRequest& request);
  absl::StatusOr<v1::PutCoverageResponse> PutCoverage(const v1::PutCoverageRequest& request);
  absl::StatusOr<v1::GetPlanResponse> GetPlan(uint64_t step, bool explain);
  CancelWait Watch(uint64_t after_revision, absl::Duration wait, WatchDone done);

  v1::JobStatus Status();
  JobFigures Figures();
  JobSnapshot Snapshot();
  v1::JobSummary Summary();
  bool HasNodes();
  bool finished();

  // Memory that is held for what is remembered: coverage, journal and plans.
  size_t StateBytes();
  // The namespace may remember no more, or may again.
  void SetMemoryFull(bool full);

  // A profile of this job's key has come. Taken up by a job that has no telemetry yet.
  void OfferProfile(const v1::LatencyProfile& profile);

  // Looks at leases, writes behind what is due. `stalled` is the time that the coordinator itself
  // stood still. Returns true where the job has had no node for longer than it is kept.
  bool Sweep(absl::Time now, absl::Duration stalled);

  // Writes what was learned.
  void WriteKnowledge();

  // Stores the spec and the generation.
  void WriteJob() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends every wait with `why`; later calls get it too.
  void Close(const absl::Status& why);

  // What a job under another spec may start from. Only after Close.
  JobSeed Export();

 private:
  struct JoinWaiter {
    uint64_t id = 0;
    Scheduler::TimerId timer = 0;
    JoinDone done;
  };
  struct Watcher {
    uint64_t after_revision = 0;
    Scheduler::TimerId timer = 0;
    WatchDone done;
  };

  Job(const JobEnvironment& environment, JobSeed seed);

  // What a line of the log is about.
  LogFields Fields(const std::string& node_id = "") ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Membership (job.cc) ---
  absl::Status CheckJoin(const v1::JoinJobRequest& request) const;
  void Apply(Membership::Changes changes, const std::string& caller, Deferred& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeUpGeneration(bool kept, Deferred& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerJoin(const std::string& node_id, absl::StatusOr<JoinAnswer> answer, bool returns,
                  Deferred& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JoinAnswer MakeJoinAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndJoin(const std::string& node_id, uint64_t waiter_id, bool timed_out);
  absl::Status MissingToJoin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Steps (job_exchange.cc) ---
  absl::StatusOr<std::set<uint32_t>> CallerRanks(const v1::NodeKey& node);
  absl::Status CheckReports(
      const std::set<uint32_t>& owned,
      const google::protobuf::RepeatedPtrField<v1::RankTelemetry>& telemetry,
      const google::protobuf::RepeatedPtrField<v1::ConsumedBatch>& consumed) const;
  void TakeReports(const google::protobuf::RepeatedPtrField<v1::RankTelemetry>& telemetry,
                   const google::protobuf::RepeatedPtrField<v1::ConsumedBatch>& consumed);
  // Returns the plan that the step was trained by; null with a fallback.
  std::shared_ptr<const PlannedStep> AddPlanFacts(v1::StepStatus& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Journal(const v1::ConsumedBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CancelWait Ask(const v1::ExchangeStepRequest& request, const std::set<uint32_t>& owned,
                 ExchangeDone done);
  absl::Status CheckPlannedBatch(const PlannedStep& planned, const v1::ExchangeStepRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SubmitPlan(uint64_t step, uint64_t serial);
  void MakePlan(uint64_t step, uint64_t serial);
  void RememberLengthImbalance(const PlannedStep& planned);
  void TellWaiters(std::vector<StepWaiter> waiters, const absl::Status& why, Deferred& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndStepWait(StepWaiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndExchange(uint64_t step, uint64_t waiter_id, bool timed_out);
  absl::Status MissingToExchange(uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::ExchangeStepResponse ReportAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- Status (job_status.cc) ---
  std::string PolicyName() const;
  v1::JobState State() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::JobStatus StatusLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed(Deferred& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatch(uint64_t watcher_id, bool timed_out);

  // Under the lock, so that writes reach the store in the order of the changes.
  void WriteLocked(StoreWrite write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutJobLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobEnvironment env_;
  const v1::JobSpec spec_;
  const JobId id_;
  const uint64_t fingerprint_;
  const RankLayout layout_;
  const absl::Duration lease_;
  const PlanExecutor::FlowId flow_;
  JobEpoch epoch_;
  JobKnowledge knowledge_;  // has a lock of its own, taken after mutex_
  JobMeter meter_;          // likewise

  absl::Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Membership members_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, JoinWaiter> join_waiters_ ABSL_GUARDED_BY(mutex_);  // by node
  StepBarrier barrier_ ABSL_GUARDED_BY(mutex_);
  PlanRing plans_ ABSL_GUARDED_BY(mutex_);
  StepHistory history_ ABSL_GUARDED_BY(mutex_);
  ConsumedJournal journal_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_step_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  bool job_row_stale_ ABSL_GUARDED_BY(mutex_) = false;  // the store refused it: try again
  absl::Time idle_since_ ABSL_GUARDED_BY(mutex_);       // no node since
  absl::Time knowledge_written_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
