// Statuses that tell a client to call again, here or elsewhere.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/store/job_id.h"

namespace sparsebalance {

// `code` with a RetryLater detail.
absl::Status RetryLater(absl::StatusCode code, const std::string& message, absl::Duration after);

// UNAVAILABLE (NotOwner without an address): no process answers for the job now, any may take it.
absl::Status NotHeldByAnyone(const JobId& id);

}  // namespace sparsebalance
