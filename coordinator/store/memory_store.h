// A store that lives as long as its object: for tests, and for a coordinator that is told to keep
// nothing.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

class MemoryStore : public Store {
 public:
  absl::StatusOr<uint64_t> RaiseLeaderEpoch(uint64_t above) override;
  absl::StatusOr<std::vector<StoredJob>> LoadJobs() override;
  absl::StatusOr<std::vector<v1::LatencyProfile>> LoadProfiles() override;
  absl::StatusOr<std::vector<CoverageChunk>> LoadCoverage(const JobId& id) override;
  absl::StatusOr<std::string> LoadLatencyState(const JobId& id) override;
  absl::StatusOr<std::vector<v1::ConsumedBatch>> LoadConsumed(const JobId& id) override;
  absl::Status Apply(absl::Span<const StoreWrite> writes) override;
  std::string Description() const override { return "memory, nothing is kept"; }

  // Every later Apply fails with `status`, until it is OK again.
  void FailWrites(absl::Status status);

 private:
  struct JobData {
    std::map<uint64_t, std::string> coverage;
    std::string latency;
    std::map<uint64_t, v1::ConsumedBatch> consumed;  // by step
  };
  struct Applier;

  absl::Mutex mutex_;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<JobId, StoredJob> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<JobId, JobData> data_ ABSL_GUARDED_BY(mutex_);
  std::map<std::tuple<std::string, std::string, std::string>, v1::LatencyProfile> profiles_
      ABSL_GUARDED_BY(mutex_);
  absl::Status write_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
