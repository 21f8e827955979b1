// The lease of this process: kept alive by a thread of its own, made anew after it was lost.
//
// How long it surely lives is counted from before the last successful renewal was sent, by a clock
// that also counts while the process or the machine stands still. A fifth of its time is not relied
// on: an etcd leader that has just been deposed may renew a lease for up to two election timeouts
// while its successor counts already. Once the time is over the lease is lost for good, even if
// etcd still knows it.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/store/etcd/etcd_client.h"

namespace sparsebalance {

// Time since the machine started, with what it slept.
absl::Duration BootTime();

struct EtcdLeaseOptions {
  absl::Duration ttl = absl::Seconds(10);  // whole seconds; etcd may make it longer
  std::function<absl::Duration()> now = BootTime;
};

// Thread-safe.
class EtcdLease {
 public:
  // `lost` is called from the lease's thread, without locks, after a lease is over and before there
  // is a new one; not for leases that End ended. `client` outlives the lease.
  EtcdLease(EtcdClient* client, EtcdLeaseOptions options, std::function<void(int64_t id)> lost);
  // Lets the lease run out, as if the process had died. Waits for a call under way.
  ~EtcdLease();

  EtcdLease(const EtcdLease&) = delete;
  EtcdLease& operator=(const EtcdLease&) = delete;

  // Id of the lease; waits for a new one where it was lost. UNAVAILABLE: there is none within
  // `timeout`.
  absl::StatusOr<int64_t> Await(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Etcd says that there is no such lease: it is lost at once.
  void NotFound(int64_t id) ABSL_LOCKS_EXCLUDED(mutex_);

  bool Alive(int64_t id) ABSL_LOCKS_EXCLUDED(mutex_);   // surely
  absl::Duration Left() ABSL_LOCKS_EXCLUDED(mutex_);    // of the time that is sure; 0: none
  absl::Status LastCall() ABSL_LOCKS_EXCLUDED(mutex_);  // outcome of the last renewal

  // Revokes it: whatever was put under it goes. None is made any more. UNAVAILABLE where etcd does
  // not answer: then it runs out.
  absl::Status End() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();
  void Grant() ABSL_LOCKS_EXCLUDED(mutex_);
  void Renew(int64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  void StopThread() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RevokeAbandoned() ABSL_LOCKS_EXCLUDED(mutex_);
  bool SureLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HoldLocked(int64_t id, absl::Duration sent, absl::Duration ttl)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailedLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  EtcdClient* const client_;
  const EtcdLeaseOptions options_;
  const std::function<void(int64_t)> lost_;
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;  // the thread, before its next call is due
  int64_t id_ ABSL_GUARDED_BY(mutex_) = 0;     // 0: none
  // By options_.now.
  absl::Duration sure_until_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_call_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_call_ ABSL_GUARDED_BY(mutex_) =
      absl::UnavailableError("etcd was not asked yet");
  std::vector<int64_t> abandoned_ ABSL_GUARDED_BY(mutex_);  // lost, but perhaps alive in etcd
  std::thread thread_;
};

}  // namespace sparsebalance
