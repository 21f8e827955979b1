// Ranks as threads, for tests of either communicator.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"
#include "worker/comm/gloo_communicator.h"

namespace sparsebalance::comm_testing {

// Runs body(rank) on `size` threads and returns what each returned.
inline std::vector<absl::Status> RunRanks(int size, const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  threads.reserve(size);
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { statuses[r] = body(r); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

// What the coordinator does for real workers: collects one blob a rank, gives all to all.
class BlobBoard {
 public:
  explicit BlobBoard(int size) : blobs_(size), missing_(size) {}

  std::vector<std::string> Exchange(int rank, std::string blob) {
    absl::MutexLock lock(&mutex_);
    blobs_[rank] = std::move(blob);
    --missing_;
    mutex_.Await(absl::Condition(
        +[](int* missing) { return *missing <= 0; }, &missing_));
    return blobs_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> blobs_ ABSL_GUARDED_BY(mutex_);
  int missing_ ABSL_GUARDED_BY(mutex_);
};

// `size` ranks over sockets on the loopback device.
inline absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> ConnectGloo(
    int size, const GlooOptions& options) {
  BlobBoard board(size);
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  const std::vector<absl::Status> statuses = RunRanks(size, [&](int r) -> absl::Status {
    absl::StatusOr<std::unique_ptr<GlooCommunicator>> comm = GlooCommunicator::Connect(
        r, size, options, [&](std::string blob) -> absl::StatusOr<std::vector<std::string>> {
          return board.Exchange(r, std::move(blob));
        });
    if (!comm.ok()) return comm.status();
    ranks[r] = *std::move(comm);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return ranks;
}

}  // namespace sparsebalance::comm_testing
