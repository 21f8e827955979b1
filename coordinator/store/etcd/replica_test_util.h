// A replica of the coordinator as far as claims go, for tests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/store/etcd/etcd_claims.h"
#include "coordinator/store/etcd/etcd_cluster.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

inline const JobId kJob{"team", "job"};
// Of leases that are to run out; others are out of the reach of a loaded machine's pauses.
inline constexpr absl::Duration kShortLease = absl::Seconds(6);
inline constexpr absl::Duration kLongLease = absl::Minutes(2);
// Over a lease's time, what etcd takes to notice, and a loaded machine.
inline constexpr absl::Duration kLong = absl::Seconds(60);

// False where it has not come true for too long.
inline bool Eventually(const std::function<bool()>& condition, absl::Duration timeout = kLong) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

inline std::optional<v1::NotOwner> NotOwnerDetail(const absl::Status& status) {
  const auto payload = status.GetPayload("type.googleapis.com/sparsebalance.v1.NotOwner");
  v1::NotOwner detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

// A replica of the coordinator, as far as claims go.
class Replica {
 public:
  Replica(const testing_support::EtcdCluster& cluster, const std::string& prefix,
          std::string address, absl::Duration call_timeout = absl::Seconds(10),
          EtcdLeaseOptions lease = {.ttl = kLongLease})
      : client_(cluster.Client(call_timeout)) {
    auto claims = EtcdClaims::Start(
        client_.get(),
        {.prefix = prefix, .address = std::move(address), .lease = std::move(lease)});
    if (!claims.ok()) {
      ADD_FAILURE() << claims.status();
      return;
    }
    claims_ = *std::move(claims);
    claims_->OnLost([this](const JobId& id, uint64_t epoch) {
      absl::MutexLock lock(&mutex_);
      lost_.emplace_back(id, epoch);
    });
  }

  EtcdClaims* operator->() { return claims_.get(); }
  EtcdClient& client() { return *client_; }
  uint64_t MustClaim(const JobId& id, uint64_t above = 0) {
    const auto epoch = claims_->Claim(id, above);
    EXPECT_TRUE(epoch.ok()) << epoch.status();
    return epoch.value_or(0);
  }
  // The job goes to whoever asks first once it is free.
  uint64_t ClaimEventually(const JobId& id, uint64_t above = 0) {
    uint64_t epoch = 0;
    EXPECT_TRUE(Eventually([&] {
      const auto claimed = claims_->Claim(id, above);
      epoch = claimed.value_or(0);
      return claimed.ok();
    }));
    return epoch;
  }
  std::vector<std::pair<JobId, uint64_t>> lost() {
    absl::MutexLock lock(&mutex_);
    return lost_;
  }
  bool holds(const JobId& id) { return claims_->Held(id).ok(); }
  int64_t lease_of(const JobId& id) { return claims_->FenceOf(id, 0)->lease; }
  // Ends as a process does that is killed.
  void Die() { claims_.reset(); }

 private:
  absl::Mutex mutex_;
  std::vector<std::pair<JobId, uint64_t>> lost_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<EtcdClaims> claims_;
};

}  // namespace sparsebalance
