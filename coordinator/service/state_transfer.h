// Backups: everything that a store holds as a row of records, and back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/job.h"
#include "coordinator/store/store.h"
#include "sparsebalance/v1/operator.pb.h"

namespace sparsebalance {

// Of StateRecord; another is refused.
constexpr uint32_t kStateFormat = 1;

struct ExportOptions {
  std::string ns;  // only this namespace; empty: all
  std::string version;
  uint64_t leader_epoch = 0;
  absl::Time now;
};

// Hands the records to `sink`, header first, trailer last, until it returns false: CANCELLED.
// Errors of the store pass through. Jobs that change meanwhile are each read at one moment or
// another; what belongs to a job is never older than its entry.
absl::Status ExportState(Store& store, const ExportOptions& options,
                         const std::function<bool(const v1::StateRecord&)>& sink);

// Puts records together again. A job is handed over once all that belongs to it is there.
class StateImporter {
 public:
  struct Targets {
    std::function<absl::Status(v1::LatencyProfile)> profile;
    // `above_epoch`: the leader epoch at the time of the backup.
    std::function<absl::Status(JobSeed, uint64_t above_epoch)> job;
  };

  explicit StateImporter(Targets targets) : targets_(std::move(targets)) {}

  // INVALID_ARGUMENT where the record cannot come here, or the format is not known; errors of the
  // targets. After an error nothing more is taken.
  absl::Status Add(const v1::StateRecord& record);

  // DATA_LOSS where the trailer is missing.
  absl::StatusOr<v1::ImportStateResponse> Finish();

 private:
  absl::Status Take(const v1::StateRecord& record);
  absl::Status CheckJob(const v1::JobKey& job) const;
  absl::Status HandOver();

  const Targets targets_;
  absl::Status failed_;
  std::optional<v1::StateRecord::Header> header_;
  std::optional<JobSeed> job_;
  uint64_t records_ = 0;
  bool complete_ = false;
  v1::ImportStateResponse taken_;
};

}  // namespace sparsebalance
