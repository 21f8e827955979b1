// The typed errors of claims.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "coordinator/store/job_id.h"

namespace sparsebalance {

// Far above what revisions and starts can add up to, far below where raising would wrap around.
inline constexpr uint64_t kMaxCredibleEpoch = uint64_t{1} << 60;

// UNAVAILABLE with a NotOwner detail. `owner_address` is empty where nobody is known to have the
// job.
absl::Status NotOwnerError(const JobId& id, const std::string& owner_address, uint64_t owner_epoch);

// INVALID_ARGUMENT with a FieldViolation where no coordinator can have had the epoch.
absl::Status CheckCredibleEpoch(uint64_t known_leader_epoch);

}  // namespace sparsebalance
