// The record of what each step was trained by, and training by such a record.
//
// A record is a file of JSON lines, one v1::PlanRecord each. Every node writes its own; the files
// of all nodes of a run together replay it, on the same number of ranks.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/client/plan_source.h"

namespace sparsebalance {

// Thread-safe: the ranks of a node write to one recorder.
class PlanRecorder {
 public:
  // Creates `path` and its folder; `append` keeps what a run recorded before it was resumed.
  // UNAVAILABLE with the system's reason.
  static absl::StatusOr<std::unique_ptr<PlanRecorder>> Open(const std::string& path, bool append);
  ~PlanRecorder();

  // Adds `record.plan` (one rank's) to the step; the line is written once all `local_ranks` are in.
  absl::Status Add(const v1::PlanRecord& record, size_t local_ranks);

 private:
  PlanRecorder(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}

  absl::Mutex mutex_;
  std::FILE* const file_;
  const std::string path_;
  std::map<uint64_t, v1::PlanRecord> open_ ABSL_GUARDED_BY(mutex_);
};

// Plans read back. Steps trained by a fallback are offered like the others.
class PlanReplay : public PlanSource {
 public:
  // `paths`: files, or folders whose *.jsonl files are all read. INVALID_ARGUMENT with file and
  // line for what is not a record, and where files contradict each other about a step. A step that
  // stands several times (a run that was resumed) counts as recorded last.
  static absl::StatusOr<std::unique_ptr<PlanReplay>> Load(const std::vector<std::string>& paths);

  void Request(const v1::GlobalBatch& batch) override;
  std::optional<PlanOffer> Wait(uint64_t step, absl::Time deadline) override;
  void Report(v1::RankTelemetry) override {}
  void ReportConsumed(v1::ConsumedBatch) override {}
  // NOT_FOUND once a step was asked for that the record does not have: replaying a run by other
  // plans than its own is an error and no fallback.
  absl::Status Health() override;

  size_t steps() const { return records_.size(); }

 private:
  explicit PlanReplay(std::map<uint64_t, v1::PlanRecord> records) : records_(std::move(records)) {}

  const std::map<uint64_t, v1::PlanRecord> records_;
  absl::Mutex mutex_;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
