// What is known about a job's times and coverage: the latency model with what telemetry taught it,
// and the coverage memory. Makes the planner's request from a batch.
//
// Thread-safe with a lock of its own, so that digesting telemetry holds up no membership call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "coordinator/planner/coverage_memory.h"
#include "coordinator/planner/latency_estimator.h"
#include "coordinator/service/job_figures.h"
#include "coordinator/store/store.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// What the knowledge starts from.
struct KnowledgeSeed {
  std::optional<v1::LatencyProfile> profile;  // of the job's key
  std::string latency_state;                  // as stored; empty: none
  std::vector<CoverageChunk> coverage;        // as stored
};

class JobKnowledge {
 public:
  // Seeds that do not fit the spec (another block size, damaged bytes) are passed over with a line
  // in the log: everything here can be learned again.
  JobKnowledge(const v1::JobSpec& spec, KnowledgeSeed seed);

  // Reports that have passed ValidateTelemetry. A coverage curve that does not fit its sequence is
  // passed over with a line in the log.
  void Observe(absl::Span<const v1::RankTelemetry* const> reports) ABSL_LOCKS_EXCLUDED(mutex_);

  void FillRequest(const v1::GlobalBatch& batch, v1::PlanRequest& request) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Knowledge that is here already wins. INVALID_ARGUMENT where a curve does not fit its sequence;
  // entries before it have been taken. Of a memory that is full nothing is taken: ask full() first.
  absl::StatusOr<v1::PutCoverageResponse> PutCoverage(
      const google::protobuf::RepeatedPtrField<v1::SequenceCoverage>& entries)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Starts afresh from the profile if it fits the job and nothing has been learned. Returns whether
  // it did.
  bool OfferProfile(const v1::LatencyProfile& profile) ABSL_LOCKS_EXCLUDED(mutex_);

  // A full memory goes on to learn about the sequences it knows, and takes no others.
  void SetFull(bool full) ABSL_LOCKS_EXCLUDED(mutex_);
  bool full() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);  // of memory, estimated

  // The knowledge's part of a job's status.
  void FillFigures(JobFigures& figures) const ABSL_LOCKS_EXCLUDED(mutex_);
  void FillStatus(v1::JobStatus& status) const ABSL_LOCKS_EXCLUDED(mutex_);

  // What has changed since the last call, as writes under a leader epoch; MarkUnwritten where one
  // of them failed.
  std::vector<StoreWrite> TakeWrites(const JobId& id, uint64_t epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkUnwritten() ABSL_LOCKS_EXCLUDED(mutex_);

  KnowledgeSeed Export() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool Fits(const v1::LatencyProfile& profile) const;
  void ObserveCoverage(const v1::RankTelemetry& report, const v1::SequenceTelemetry& sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // With what is remembered of their coverage.
  void AddSequences(const google::protobuf::RepeatedPtrField<v1::BatchSequence>& sequences,
                    google::protobuf::RepeatedPtrField<v1::Sequence>& out) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const v1::JobSpec spec_;
  mutable absl::Mutex mutex_;
  std::optional<v1::LatencyProfile> profile_ ABSL_GUARDED_BY(mutex_);
  planner::LatencyEstimator latency_ ABSL_GUARDED_BY(mutex_);
  planner::CoverageMemory coverage_ ABSL_GUARDED_BY(mutex_);
  // By layer, of jobs that deal budgets over layers; else empty. Not stored: after a restart
  // budgets are the same in all layers until curves have been measured again.
  std::vector<planner::CoverageMemory> layer_coverage_ ABSL_GUARDED_BY(mutex_);
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  bool latency_changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_everything_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sparsebalance
