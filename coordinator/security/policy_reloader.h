// Keeps an authorizer's policy up to date with its file. A file that does not parse is refused with
// one line in the log, and the policy before it stays in force.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/security/authorizer.h"
#include "coordinator/security/periodic_task.h"

namespace sparsebalance::security {

class PolicyReloader {
 public:
  // Reads the file for the first time: an Authorizer from it, or Policy::Load's error.
  static absl::StatusOr<std::unique_ptr<PolicyReloader>> Start(
      std::string path, Authorizer::Options authorizer_options,
      absl::Duration interval = absl::Seconds(10));
  PolicyReloader(const PolicyReloader&) = delete;
  PolicyReloader& operator=(const PolicyReloader&) = delete;

  // It lives as long as this object.
  Authorizer* authorizer() { return &authorizer_; }

  // Looks at the file now instead of at the end of the interval.
  void CheckNow() ABSL_LOCKS_EXCLUDED(mutex_);

  // For metrics.
  uint64_t reloads() const { return reloads_.load(); }
  uint64_t failures() const { return failures_.load(); }

 private:
  PolicyReloader(std::string path, std::string text, Policy policy, Authorizer::Options options,
                 absl::Duration interval);

  const std::string path_;
  Authorizer authorizer_;
  std::atomic<uint64_t> reloads_{0};
  std::atomic<uint64_t> failures_{0};
  absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);  // in force
  std::string seen_problem_ ABSL_GUARDED_BY(mutex_);
  std::string told_problem_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PeriodicTask> task_;  // last: it uses the rest
};

}  // namespace sparsebalance::security
