// Claims of the only coordinator there is: every job is its own. Its epoch is one number for all
// jobs, stored, raised at every start and above every epoch that a client has seen elsewhere.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/job_claims.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

class SoleClaims : public JobClaims {
 public:
  // Raises the stored epoch; the store's error where that fails. `store` outlives the object.
  // `address` is where clients reach this process, for Owners.
  static absl::StatusOr<std::unique_ptr<SoleClaims>> Open(Store* store, std::string address);

  uint64_t current() const { return current_.load(std::memory_order_acquire); }

  // Raises the epoch of all jobs where `above` is above it; no job is lost by that. Returns
  // current().
  absl::StatusOr<uint64_t> Claim(const JobId& id, uint64_t above) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> Held(const JobId& id) override;  // current(), for every job
  absl::Status Release(const JobId& id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReleaseAll() override ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Owned> Owners() override ABSL_LOCKS_EXCLUDED(mutex_);  // what was claimed
  void OnLost(Lost lost) override {}                                 // nothing ever is
  Health CheckHealth() override;                                     // always well
  bool shared() const override { return false; }

 private:
  SoleClaims(Store* store, std::string address, uint64_t epoch)
      : store_(store), address_(std::move(address)), current_(epoch) {}

  Store* const store_;
  const std::string address_;
  std::atomic<uint64_t> current_;
  absl::Mutex mutex_;  // held while raising
  std::set<JobId> claimed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
