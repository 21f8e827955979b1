// `sbctl plan --requests FILE`: plans for batches given in a file, without a coordinator.
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace sparsebalance {

struct PlanRequestsOptions {
  std::string path;      // request_file.h says the format
  std::string policy;    // overrides the requests' own; empty: does not
  std::string effort;    // "fast", "normal" or "high", likewise
  bool json = false;     // one v1.Plan a line, else a table
  bool explain = false;  // sentences after each plan; with the table only
};

// Plans go out one by one as they are made; a request that cannot be planned ends it with an error
// that names its place among the requests.
absl::Status PlanRequests(const PlanRequestsOptions& options, std::ostream& out);

}  // namespace sparsebalance
