// The store that several replicas of the coordinator share, in etcd.
//
//   auto client = EtcdClient::Create({.endpoints = {"10.0.0.1:2379"}});
//   auto claims = EtcdClaims::Start(client->get(), {.address = "10.0.0.7:7071"});
//   auto store = EtcdStore::Open(client->get(), claims->get(), {});
//   (*claims)->Claim(id, 0);
//   (*store)->Apply({StoreJob{...}});
//
// What belongs to a job is written only while this process holds the job's claim: etcd itself
// compares it in the same transaction. So to forget a job that nobody has, claim it, apply
// RemoveJob, release it. Profiles are everybody's; the last one written stays.
//
// etcd keeps what was overwritten until it is compacted, so it should run with
// --auto-compaction-retention. Keys are described in etcd_keys.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/etcd/claim_fences.h"
#include "coordinator/store/etcd/etcd_client.h"
#include "coordinator/store/etcd/etcd_job_writer.h"
#include "coordinator/store/etcd/etcd_keys.h"
#include "coordinator/store/etcd/etcd_records.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

struct EtcdStoreOptions {
  std::string prefix = "/sparsebalance/";  // the same for all replicas, and as in EtcdClaimsOptions
  EtcdLimits limits;                       // at most those of the etcd that is used
};

class EtcdStore : public Store {
 public:
  // Asks etcd who it is: UNAVAILABLE where it does not answer. Both outlive the store.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(EtcdClient* client, ClaimFences* fences,
                                                         EtcdStoreOptions options);

  // A new epoch above those of all claims so far. Claims have epochs of their own (job_claims.h),
  // so that a coordinator whose jobs are claimed has no use for it.
  absl::StatusOr<uint64_t> RaiseLeaderEpoch(uint64_t above) override;

  absl::StatusOr<std::vector<StoredJob>> LoadJobs() override;  // of all replicas
  absl::StatusOr<std::optional<StoredJob>> LoadJob(const JobId& id) override;
  absl::StatusOr<std::vector<v1::LatencyProfile>> LoadProfiles() override;
  absl::StatusOr<std::vector<CoverageChunk>> LoadCoverage(const JobId& id) override;
  absl::StatusOr<std::string> LoadLatencyState(const JobId& id) override;
  absl::StatusOr<std::vector<v1::ConsumedBatch>> LoadConsumed(const JobId& id) override;

  // One call at a time writes. Jobs whose writes fail do not hold up the others, unless etcd is
  // away.
  absl::Status Apply(absl::Span<const StoreWrite> writes) override ABSL_LOCKS_EXCLUDED(mutex_);

  std::string Description() const override;

 private:
  struct Applier;

  EtcdStore(EtcdClient* client, ClaimFences* fences, EtcdStoreOptions options);

  absl::Status ApplyToJob(const JobId& id, const std::vector<const StoreWrite*>& writes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutProfile(const v1::LatencyProfile& profile);
  absl::Status Prune(const PruneConsumed& write, EtcdJobWriter& writer);
  // Records whose paths start with the directory: to read, and what deletes them.
  absl::StatusOr<std::vector<EtcdRecord>> Read(const std::string& directory);
  std::vector<etcdserverpb::RequestOp> All(const std::string& directory) const;

  EtcdClient* const client_;
  const EtcdKeys keys_;
  const EtcdLimits limits_;
  const EtcdJobWriter::Parts writer_parts_;
  absl::Mutex mutex_;  // held while writing
  std::map<JobId, JobMark> marks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
