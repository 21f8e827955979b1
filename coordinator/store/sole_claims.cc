#include "coordinator/store/sole_claims.h"

#include <utility>

#include "coordinator/store/claim_errors.h"

namespace sparsebalance {

absl::StatusOr<std::unique_ptr<SoleClaims>> SoleClaims::Open(Store* store, std::string address) {
  absl::StatusOr<uint64_t> epoch = store->RaiseLeaderEpoch(0);
  if (!epoch.ok()) return epoch.status();
  return std::unique_ptr<SoleClaims>(new SoleClaims(store, std::move(address), *epoch));
}

absl::StatusOr<uint64_t> SoleClaims::Claim(const JobId& id, uint64_t above) {
  if (absl::Status status = CheckCredibleEpoch(above); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (above > current()) {
    absl::StatusOr<uint64_t> raised = store_->RaiseLeaderEpoch(above);
    if (!raised.ok()) return raised.status();
    current_.store(*raised, std::memory_order_release);
  }
  claimed_.insert(id);
  return current();
}

absl::StatusOr<uint64_t> SoleClaims::Held(const JobId& id) { return current(); }

absl::Status SoleClaims::Release(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  claimed_.erase(id);
  return absl::OkStatus();
}

absl::Status SoleClaims::ReleaseAll() {
  absl::MutexLock lock(&mutex_);
  claimed_.clear();
  return absl::OkStatus();
}

std::vector<JobClaims::Owned> SoleClaims::Owners() {
  absl::MutexLock lock(&mutex_);
  std::vector<Owned> owners;
  owners.reserve(claimed_.size());
  for (const JobId& id : claimed_) owners.push_back({id, address_, current()});
  return owners;
}

JobClaims::Health SoleClaims::CheckHealth() {
  return {.lease_alive = true, .lease_left = absl::InfiniteDuration(), .store_answers = true};
}

}  // namespace sparsebalance
