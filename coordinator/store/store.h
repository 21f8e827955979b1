// What must outlive a coordinator's process. All of it can be rebuilt from clients or measured
// again, so writes are queued and never hold up an RPC:
//
//   StoreWriter writer(store, {});                        // owns the writing thread
//   writer.Write(StoreJob{id, spec, generation}, nullptr);  // returns at once
//   writer.Write(StoreConsumed{id, batch}, [](absl::Status status) { /* committed */ });
//   writer.Flush();
//
// The leader epoch is the exception: it fences old leaders, so it is on disk before it is used. A
// store that several replicas share (EtcdStore) takes a job's writes only from the replica that has
// claimed it (job_claims.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/store/job_id.h"
#include "sparsebalance/v1/coordinator.pb.h"
#include "sparsebalance/v1/profile.pb.h"

namespace sparsebalance {

struct StoredJob {
  JobId id;
  v1::JobSpec spec;
  uint64_t generation = 0;  // of the last complete membership; 0: there was none
  bool finished = false;
};

// A part of a job's coverage memory, opaque to the store.
struct CoverageChunk {
  uint64_t index = 0;
  std::string bytes;
};

// Writes. Each is applied whole or not at all, StoreCoverage chunk by chunk, and comes to the same
// when it is applied again.
//
// `epoch` is the leader epoch of the job under which the write was made: a shared store refuses it
// where the job is held under another by now. 0: whichever it is held under. Stores of one process
// ignore it.
struct StoreJob {  // replaces the job's row; what belongs to the job stays
  StoredJob job;
  uint64_t epoch = 0;
};
struct RemoveJob {  // with everything that belongs to it
  JobId id;
  uint64_t epoch = 0;
};
struct StoreProfile {  // replaces a profile with an equal key
  v1::LatencyProfile profile;
};
struct StoreCoverage {  // replaces the chunks with equal indices
  JobId id;
  std::vector<CoverageChunk> chunks;
  uint64_t epoch = 0;
};
struct RemoveCoverage {  // all chunks of the job
  JobId id;
  uint64_t epoch = 0;
};
struct StoreLatencyState {
  JobId id;
  std::string bytes;  // empty: forgets it
  uint64_t epoch = 0;
};
struct StoreConsumed {  // replaces the batch of an equal step
  JobId id;
  v1::ConsumedBatch batch;
  uint64_t epoch = 0;
};
struct CutConsumed {  // forgets batches of this step and later ones
  JobId id;
  uint64_t first_step = 0;
  uint64_t epoch = 0;
};
struct PruneConsumed {  // forgets batches of epochs before this one
  JobId id;
  uint64_t first_kept_epoch = 0;  // of the training
  uint64_t epoch = 0;
};

using StoreWrite = std::variant<StoreJob, RemoveJob, StoreProfile, StoreCoverage, RemoveCoverage,
                                StoreLatencyState, StoreConsumed, CutConsumed, PruneConsumed>;

// Thread-safe. Errors: UNAVAILABLE or INTERNAL with the store's own words where it cannot be read
// or written, DATA_LOSS where a row cannot be understood.
class Store {
 public:
  virtual ~Store() = default;

  // Raises the stored leader epoch above its old value and above `above`; durable on return.
  virtual absl::StatusOr<uint64_t> RaiseLeaderEpoch(uint64_t above) = 0;

  virtual absl::StatusOr<std::vector<StoredJob>> LoadJobs() = 0;  // by namespace, then name
  // One of them; nothing where it is not stored.
  virtual absl::StatusOr<std::optional<StoredJob>> LoadJob(const JobId& id);
  virtual absl::StatusOr<std::vector<v1::LatencyProfile>> LoadProfiles() = 0;
  virtual absl::StatusOr<std::vector<CoverageChunk>> LoadCoverage(const JobId& id) = 0;
  // Empty where none is stored.
  virtual absl::StatusOr<std::string> LoadLatencyState(const JobId& id) = 0;
  virtual absl::StatusOr<std::vector<v1::ConsumedBatch>> LoadConsumed(const JobId& id) = 0;

  // Applies the writes, those of one job in their order; durable on return. A store of one process
  // applies all or none. A shared store has limits to its transactions: where the writes exceed
  // them, or belong to several jobs, a failure may leave some of them applied, of each job the
  // first ones; the error is that of the first job that failed, or UNAVAILABLE, at which it stops.
  // ABORTED, naming the job: it is not claimed by this process, or under another epoch, and nothing
  // more of it was written.
  virtual absl::Status Apply(absl::Span<const StoreWrite> writes) = 0;

  // One line for people: what kind of store it is and where.
  virtual std::string Description() const = 0;
};

}  // namespace sparsebalance
