// The number that fences old coordinators: raised at every start, and above every epoch that a
// client has seen elsewhere. Workers reject answers of a lower one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

class LeaderEpoch {
 public:
  // Raises the stored epoch. `store` outlives the object.
  static absl::StatusOr<std::unique_ptr<LeaderEpoch>> Raise(Store* store);

  uint64_t current() const { return current_.load(std::memory_order_acquire); }

  // Takes note of the highest epoch that a client has seen. INVALID_ARGUMENT (FieldViolation) for
  // one that no coordinator can have reached; the store's error where the new epoch cannot be
  // made durable.
  absl::Status Observe(uint64_t known) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  LeaderEpoch(Store* store, uint64_t epoch) : store_(store), current_(epoch) {}

  Store* const store_;
  absl::Mutex mutex_;  // held while raising
  std::atomic<uint64_t> current_;
};

}  // namespace sparsebalance
