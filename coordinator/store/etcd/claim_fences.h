// What tells a job's owner from those that were it: the store's view of claims.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "coordinator/store/job_id.h"

namespace sparsebalance {

struct ClaimFence {
  int64_t create_revision = 0;  // of the claim's key
  int64_t lease = 0;            // that the claim lives under
};

// Thread-safe.
class ClaimFences {
 public:
  virtual ~ClaimFences() = default;

  // The fence of a job that is held under the epoch; 0: under any. ABORTED, naming the job, where
  // it is not. Never blocks.
  virtual absl::StatusOr<ClaimFence> FenceOf(const JobId& id, uint64_t epoch) = 0;
};

}  // namespace sparsebalance
