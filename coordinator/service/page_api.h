// What the status page's scripts ask for, as JSON. Read-only; nothing is written under a job's
// lock: what a job holds is copied there, and put into words afterwards.
//
//   /api/v1/jobs?filter=TEXT&offset=N&limit=N    summaries, by namespace and name
//   /api/v1/job?namespace=NS&name=NAME&known_plan=KEY    a job's status and its current plan
//
// Messages of the contract are protobuf JSON under their original field names, default values
// included; 64-bit integers are strings there. An error is {"error": {"code", "message"}}.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/service/job.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

struct PageAnswer {
  int status = 200;  // of HTTP
  std::string body;  // JSON
};

// {"error": ...} with the status of HTTP that the error's code means.
PageAnswer PageError(const absl::Status& error);

class PageApi {
 public:
  // Of a query string, decoded.
  using Parameters = std::multimap<std::string, std::string>;

  struct Source {
    std::function<absl::StatusOr<v1::ListJobsResponse>()> jobs;
    std::function<absl::StatusOr<JobSnapshot>(const v1::JobKey&)> job;
    std::string version;
    std::string store;
    std::function<std::string()> problem;  // what does not work; empty: nothing. May be null
  };

  // Bounds of an answer. A job of more ranks has its suspect and slowest ones listed.
  static constexpr size_t kMaxJobs = 500;
  static constexpr size_t kDefaultJobs = 200;
  static constexpr int kMaxRanks = 64;
  static constexpr int kMaxMissingRanks = 256;

  explicit PageApi(Source source) : source_(std::move(source)) {}

  // 400 for parameters that are unknown, given twice or out of range.
  PageAnswer Jobs(const Parameters& parameters) const;
  // 404 where the job is not known, 503 where another replica answers for it.
  PageAnswer Job(const Parameters& parameters) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A plan never changes: many viewers of one job have it written once.
  std::string PlanText(const std::string& key, const PlannedStep& planned)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Source source_;
  absl::Mutex mutex_;
  std::map<std::string, std::string> plans_ ABSL_GUARDED_BY(mutex_);  // a few, by key
};

}  // namespace sparsebalance
