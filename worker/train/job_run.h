// One job of a node: its session with the coordinator, its source of plans, its communicators and
// the trainers of the node's ranks. A node that compares policies has one of these a policy.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/client/node_session.h"
#include "worker/comm/communicator.h"
#include "worker/train/checkpoint.h"
#include "worker/train/node_rendezvous.h"
#include "worker/train/plan_record.h"
#include "worker/train/trainer.h"
#include "worker/train/worker_node.h"

namespace sparsebalance {

// The job that a policy trains: one of its own where several train side by side.
v1::JobKey JobOf(const WorkerNodeOptions& options, const std::string& policy);

class JobRun {
 public:
  // Opens records and the checkpoint to resume from, and registers the job (waiting for the
  // coordinator). `dataset`, `options` and `stop` outlive it.
  static absl::StatusOr<std::unique_ptr<JobRun>> Create(const WorkerNodeOptions& options,
                                                        const std::string& policy,
                                                        const data::IndexedDataset* dataset,
                                                        const StopSignal* stop);

  // From the thread of local rank `index`: joins, connects to the other ranks, builds the trainer
  // and asks for the first plan.
  absl::Status StartRank(size_t index);
  Trainer& trainer(size_t index) { return *trainers_[index]; }

  // Wakes every rank of this node that waits for another, and tells the other nodes.
  void Abort(const absl::Status& why);

  // Where the node writes its output: the coverage that its ranks measured, to
  // coverage/POLICY/NODE.jsonl.
  absl::Status WriteCoverage() const;

  // Where local rank `index` is rank 0 of the job and an export is asked for: writes the model.
  // From the rank's thread, after the last step. INVALID_ARGUMENT where it cannot be written.
  absl::Status Export(size_t index);

  // Gives the ranks back to the coordinator.
  void Leave(const std::string& reason, bool finished);

  // The checkpoint to resume from lies behind the last step, and nothing is to be exported: there
  // is nothing to join the others for.
  bool AllDone() const {
    return checkpoint_.has_value() && checkpoint_->position.next_step >= train_.steps &&
           train_.export_dir.empty();
  }

  const std::string& policy() const { return policy_; }
  const TrainOptions& train() const { return train_; }
  NodeSession* session() { return session_.get(); }  // null: standalone

 private:
  JobRun(const WorkerNodeOptions& options, const std::string& policy,
         const data::IndexedDataset* dataset);
  absl::StatusOr<std::vector<std::string>> JoinAll(const std::vector<std::string>& blobs);
  absl::Status Connect(size_t index);
  // NCCL's communicator between GPUs, where it can be had, else Gloo's.
  absl::StatusOr<std::unique_ptr<Communicator>> ConnectRank(size_t index, int rank, int size);

  const WorkerNodeOptions& options_;
  const std::string policy_;
  const data::IndexedDataset* const dataset_;
  TrainOptions train_;
  std::optional<Checkpoint> checkpoint_;
  std::unique_ptr<PlanRecorder> recorder_;
  std::unique_ptr<PlanReplay> replay_;
  std::unique_ptr<NodeSession> session_;
  std::unique_ptr<PlanSource> wrapped_;
  PlanSource* plans_ = nullptr;
  std::unique_ptr<NodeRendezvous> rendezvous_;

  absl::Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Communicator>> comms_ ABSL_GUARDED_BY(mutex_);
  // Last, so that they go first: a trainer that was stopped within a step aborts its communicator.
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

}  // namespace sparsebalance
