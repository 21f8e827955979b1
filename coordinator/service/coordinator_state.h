// A coordinator's store and its claims on jobs, opened together: alone with a file or with memory,
// or as one of several replicas on etcd.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/store_location.h"
#include "coordinator/store/etcd/etcd_channel.h"
#include "coordinator/store/etcd/etcd_client.h"
#include "coordinator/store/job_claims.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

struct StateConfig {
  StoreLocation location;
  std::string advertise;  // HOST:PORT where clients reach this process
  // With etcd: a replica that is gone, or cut off, loses its jobs after so long. Whole seconds.
  absl::Duration take_over = absl::Seconds(10);
  absl::Duration etcd_timeout = absl::Seconds(5);  // of one call
  EtcdTlsFiles etcd_tls;
};

class CoordinatorState {
 public:
  // The errors of the stores and of the claims. A damaged SQLite file is set aside, which is
  // logged.
  static absl::StatusOr<std::unique_ptr<CoordinatorState>> Open(const StateConfig& config);

  Store* store() { return store_.get(); }
  JobClaims* claims() { return claims_.get(); }

 private:
  CoordinatorState() = default;

  absl::Status OpenEtcd(const StateConfig& config);

  // Claims on etcd know no store and a store on etcd asks them; alone it is the other way round,
  // but claims of the only process touch its store only when they are asked for.
  std::unique_ptr<EtcdClient> etcd_;
  std::unique_ptr<JobClaims> claims_;
  std::unique_ptr<Store> store_;
};

}  // namespace sparsebalance
