// Claims of replicas that share one etcd.
//
//   auto claims = EtcdClaims::Start(client, {.address = "10.0.0.7:7071"});
//
// A claim is a key that its owner has made under the lease of its process; only one replica can
// make it, and it goes when the lease does. A job's leader epoch is the revision that made the key,
// plus a base (etcd_epoch.h): no two claims have the same, and a later one has a higher one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/etcd/claim_fences.h"
#include "coordinator/store/etcd/etcd_client.h"
#include "coordinator/store/etcd/etcd_keys.h"
#include "coordinator/store/etcd/etcd_lease.h"
#include "coordinator/store/etcd/etcd_watcher.h"
#include "coordinator/store/job_claims.h"

namespace sparsebalance {

struct EtcdClaimsOptions {
  std::string prefix = "/sparsebalance/";  // the same for all replicas
  std::string address;                     // where clients reach this one: HOST:PORT
  EtcdLeaseOptions lease;
};

class EtcdClaims : public JobClaims, public ClaimFences {
 public:
  // Waits for the first lease: UNAVAILABLE where etcd does not answer. `client` outlives the
  // claims.
  static absl::StatusOr<std::unique_ptr<EtcdClaims>> Start(EtcdClient* client,
                                                           EtcdClaimsOptions options);
  // Without ReleaseAll before, claims stay until the lease runs out, as if the process had died.
  ~EtcdClaims() override;

  EtcdClaims(const EtcdClaims&) = delete;
  EtcdClaims& operator=(const EtcdClaims&) = delete;

  absl::StatusOr<uint64_t> Claim(const JobId& id, uint64_t above) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> Held(const JobId& id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Release(const JobId& id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReleaseAll() override ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Owned> Owners() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnLost(Lost lost) override ABSL_LOCKS_EXCLUDED(mutex_);
  Health CheckHealth() override;
  bool shared() const override { return true; }

  absl::StatusOr<ClaimFence> FenceOf(const JobId& id, uint64_t epoch) override
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct HeldClaim {
    uint64_t epoch = 0;
    ClaimFence fence;
  };
  // A claim's key as last heard of.
  struct SeenClaim {
    std::string address;
    std::string replica_id;
    uint64_t epoch = 0;
    int64_t create_revision = 0;
  };
  // Only one call at a time takes or gives up a job.
  class Turn;

  EtcdClaims(EtcdClient* client, EtcdClaimsOptions options);

  static std::optional<SeenClaim> Parse(const etcdserverpb::KeyValue& kv);
  absl::Status NotOwner(const JobId& id, const SeenClaim& seen) const;

  absl::StatusOr<uint64_t> Take(const JobId& id, uint64_t above) ABSL_LOCKS_EXCLUDED(mutex_);
  // The claim was made; takes note of it unless it is over already.
  absl::StatusOr<uint64_t> Took(const JobId& id, const HeldClaim& claim)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes the claim's key, if it is still the one that this revision made. Where etcd does not
  // answer, the thread tries again later.
  absl::Status Remove(const JobId& id, int64_t create_revision) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RemoveOnce(const JobId& id, int64_t create_revision, absl::Duration timeout);

  // From the watch.
  void Listed(const EtcdSnapshot& snapshot) ABSL_LOCKS_EXCLUDED(mutex_);
  void Changed(const std::vector<etcdserverpb::Event>& events) ABSL_LOCKS_EXCLUDED(mutex_);
  void SawLocked(const JobId& id, const etcdserverpb::KeyValue& kv)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From the lease.
  void LeaseLost(int64_t lease) ABSL_LOCKS_EXCLUDED(mutex_);
  // The job is not held any more; OnLost's callback will hear of it.
  void LoseLocked(std::map<JobId, HeldClaim>::iterator held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void TellLost(const std::vector<std::pair<JobId, uint64_t>>& lost) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveStray() ABSL_LOCKS_EXCLUDED(mutex_);

  EtcdClient* const client_;
  const EtcdKeys keys_;
  const std::string address_;
  const std::string replica_id_;  // random: of this object and no other

  absl::Mutex mutex_;  // taken before the lease's
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<JobId> busy_ ABSL_GUARDED_BY(mutex_);  // a Turn is under way
  std::map<JobId, HeldClaim> held_ ABSL_GUARDED_BY(mutex_);
  std::map<JobId, SeenClaim> seen_ ABSL_GUARDED_BY(mutex_);  // of all replicas
  int64_t seen_revision_ ABSL_GUARDED_BY(mutex_) = 0;        // what seen_ shows
  // Keys of ours that may lie in etcd although we do not hold them, as after a call whose answer
  // was lost: they would keep the job from everybody while our lease lives. By the revision that
  // made them.
  std::map<JobId, int64_t> stray_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<JobId, uint64_t>> lost_ ABSL_GUARDED_BY(mutex_);  // to be told of
  bool work_ ABSL_GUARDED_BY(mutex_) = false;                             // for the thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Lost> on_lost_ ABSL_GUARDED_BY(mutex_);

  // In this order: a thread uses what is above it.
  std::unique_ptr<EtcdWatcher> watcher_;
  std::unique_ptr<EtcdLease> lease_;
  std::thread thread_;
};

}  // namespace sparsebalance
