// Brings the local ranks of a node together for one call to the coordinator: each rank's thread
// hands in its address, the last one runs the exchange for all, and everybody gets its result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace sparsebalance {

class NodeRendezvous {
 public:
  // Takes the local blobs in local order; returns the blobs of all ranks of the job in rank order.
  using Exchange =
      std::function<absl::StatusOr<std::vector<std::string>>(std::vector<std::string>)>;

  NodeRendezvous(size_t local_ranks, Exchange exchange)
      : exchange_(std::move(exchange)), blobs_(local_ranks) {}

  // Once per local rank, from its own thread; blocks until the exchange is done.
  absl::StatusOr<std::vector<std::string>> Meet(size_t local_index, std::string blob) {
    absl::MutexLock lock(&mutex_);
    blobs_[local_index] = std::move(blob);
    if (++arrived_ == blobs_.size()) {
      result_ = exchange_(blobs_);
    } else {
      const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return result_.has_value(); };
      mutex_.Await(absl::Condition(&done));
    }
    return *result_;
  }

  // A local rank that cannot come releases the others with its error.
  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (!result_.has_value()) result_ = status;
  }

 private:
  const Exchange exchange_;
  absl::Mutex mutex_;
  std::vector<std::string> blobs_ ABSL_GUARDED_BY(mutex_);
  size_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::StatusOr<std::vector<std::string>>> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
