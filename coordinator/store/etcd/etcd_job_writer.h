// Writes of one job in etcd transactions that only its owner can make, each exactly once.
//
// Every transaction compares two keys. The claim's says that the job is still ours. The mark's,
// which every transaction puts anew, says that this is the next one: a transaction whose answer was
// lost may otherwise be carried out late, over newer writes. The mark's value tells an answer that
// was lost from one that never was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/store/etcd/claim_fences.h"
#include "coordinator/store/etcd/etcd_client.h"
#include "coordinator/store/etcd/etcd_keys.h"
#include "coordinator/store/etcd/etcd_records.h"
#include "coordinator/store/job_id.h"

namespace sparsebalance {

// Where the transactions of one claim stand. Kept between writers of the same job.
struct JobMark {
  int64_t claim = 0;   // create revision of the claim
  int64_t put_at = 0;  // revision of the last transaction under it, as far as is known; 0: none
};

// Not thread-safe, and the only one of its job.
class EtcdJobWriter {
 public:
  struct Parts {
    EtcdClient* client;
    const EtcdKeys* keys;
    ClaimFences* fences;
    const EtcdLimits* limits;
    std::function<std::string()> token;  // another one each time, letters and digits
  };

  // `parts` and `mark` outlive the writer.
  EtcdJobWriter(const Parts* parts, JobId id, JobMark* mark);

  // Collects operations that belong in one transaction, in order; few enough for one. Writes what
  // was collected before where these do not fit with it or need another epoch. Errors as of Flush.
  absl::Status Add(std::vector<etcdserverpb::RequestOp> operations, uint64_t epoch);
  // Puts a record, in parts where it is too big.
  absl::Status Put(const std::string& path, const std::string& bytes, uint64_t epoch);

  // Writes what was collected. ABORTED: the job is not held under the epoch, and nothing of it was
  // written. After an error nothing is collected.
  absl::Status Flush();

 private:
  bool Fits(const std::vector<etcdserverpb::RequestOp>& operations, uint64_t epoch) const;
  absl::Status Commit(const ClaimFence& fence, const etcdserverpb::TxnRequest& collected);
  absl::Status Aborted() const;

  const Parts& parts_;
  const JobId id_;
  JobMark& mark_;
  uint64_t epoch_ = 0;  // of what was collected
  etcdserverpb::TxnRequest collected_;
  size_t collected_bytes_ = 0;
};

}  // namespace sparsebalance
