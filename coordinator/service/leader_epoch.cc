#include "coordinator/service/leader_epoch.h"

#include "absl/strings/str_cat.h"
#include "coordinator/planner/validation.h"

namespace sparsebalance {
namespace {

// Far above what starts can add up to, far below where raising would wrap around.
constexpr uint64_t kMaxCredibleEpoch = uint64_t{1} << 60;

}  // namespace

absl::StatusOr<std::unique_ptr<LeaderEpoch>> LeaderEpoch::Raise(Store* store) {
  absl::StatusOr<uint64_t> epoch = store->RaiseLeaderEpoch(0);
  if (!epoch.ok()) return epoch.status();
  return std::unique_ptr<LeaderEpoch>(new LeaderEpoch(store, *epoch));
}

absl::Status LeaderEpoch::Observe(uint64_t known) {
  if (known <= current()) return absl::OkStatus();
  if (known > kMaxCredibleEpoch) {
    return planner::FieldError("known_leader_epoch", absl::StrCat(known),
                               "no coordinator can have had it; send the epoch of a response");
  }
  absl::MutexLock lock(&mutex_);
  if (known <= current()) return absl::OkStatus();
  absl::StatusOr<uint64_t> raised = store_->RaiseLeaderEpoch(known);
  if (!raised.ok()) return raised.status();
  current_.store(*raised, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace sparsebalance
