#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsebalance {

// Publishes this rank's blob (binary) and blocks until it can return those of all ranks, in rank
// order, its own included. Called once, from the thread that calls Connect(). It should bound its
// own wait: Connect() cannot interrupt it.
using RendezvousExchange =
    std::function<absl::StatusOr<std::vector<std::string>>(std::string own_blob)>;

}  // namespace sparsebalance
