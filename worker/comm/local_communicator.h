// Ranks as threads of one process, without sockets: for tests and for one-process training.
//
//   auto ranks = CreateLocalGroup(4, {});
//   // thread r: (*ranks)[r]->AllReduceSum(gradients[r]);
//
// Faults are injected before a collective starts, so that others can test their failure paths:
//
//   LocalGroupOptions options;
//   options.before_collective = FailAt(/*rank=*/2, /*call=*/5,
//   absl::UnavailableError("unplugged"));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"

namespace sparsebalance {

// Asked on each rank before its `call`-th collective (from 1). An error makes that rank fail: it
// returns the error, its peers get UNAVAILABLE that names the rank, as if its process had died.
using LocalFault = std::function<absl::Status(int rank, uint64_t call, std::string_view operation)>;

struct LocalGroupOptions {
  // How long a rank waits for its peers in one collective.
  absl::Duration timeout = absl::Minutes(5);
  // Called without locks held; may block, which makes its rank a straggler.
  LocalFault before_collective;
};

// A fault that strikes `rank` at its `call`-th collective and at no other.
LocalFault FailAt(int rank, uint64_t call, absl::Status error);

// One communicator a rank, in rank order. The group lives until the last of them is destroyed;
// destroying one early makes its peers' next collective fail with UNAVAILABLE.
// INVALID_ARGUMENT where size < 1 or the timeout is not positive.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateLocalGroup(
    int size, LocalGroupOptions options = {});

}  // namespace sparsebalance
