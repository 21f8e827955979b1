// One rank's training loop for one job: asks for plans ahead, agrees on them with the other ranks,
// computes its share, reduces gradients, updates, reports, and writes checkpoints.
//
// A step, on every rank:
//   1. wait for the plan that was asked for during the step before, at most plan_deadline;
//   2. agree with all ranks on that plan or on the fallback;
//   3. ask for the next step's plan;
//   4. forward and backward of the rank's micro-batches;
//   5. sum gradients over ranks, clip, update;
//   6. share what was measured.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/client/plan_source.h"
#include "worker/comm/communicator.h"
#include "worker/train/batch_source.h"
#include "worker/train/checkpoint.h"
#include "worker/train/coverage_notes.h"
#include "worker/train/gpu_monitor.h"
#include "worker/train/plan_record.h"
#include "worker/train/rank_compute.h"
#include "worker/train/step_record.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

// All of these outlive the trainer.
struct TrainerDependencies {
  Communicator* comm = nullptr;
  PlanSource* plans = nullptr;  // null: none, every step is trained by the fallback
  // A replay: a plan that does not fit is an error instead of a reason for the fallback.
  bool plans_required = false;
  const data::IndexedDataset* dataset = nullptr;
  PlanRecorder* recorder = nullptr;  // null: plans are not recorded
  size_t local_ranks = 1;            // that share the recorder
  int device = 0;                    // GPU of this rank, where the backend is CUDA
  std::function<void(const std::string&)> log = [](const std::string&) {};
};

enum class StepOutcome { kTrained, kFinished, kStopped };

class Trainer {
 public:
  // Builds the model and the batches, from `checkpoint` where there is one. Collective:
  // FAILED_PRECONDITION where ranks do not begin with the same parameters; INVALID_ARGUMENT for a
  // checkpoint of another data set, model, seed or, of adapters, another model under them.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainOptions& options,
                                                         TrainerDependencies dependencies,
                                                         const Checkpoint* checkpoint);

  // Asks for the plan of the first step, so that it is there when the step begins.
  absl::Status Prefetch();

  // Collective. kFinished where no step is left; kStopped where some rank wants to stop: then no
  // rank has run the step. After kTrained, last_record() tells what was measured.
  absl::StatusOr<StepOutcome> RunStep(bool stop_requested);

  const StepRecord& last_record() const { return record_; }
  uint64_t next_step() const { return batches_.step(); }

  // Collective. Also called by RunStep every checkpoint_every steps.
  absl::Status SaveCheckpoint();

  const CoverageNotes& coverage_notes() const { return notes_; }
  RankCompute& compute() { return *compute_; }

 private:
  Trainer(const TrainOptions& options, TrainerDependencies dependencies,
          std::unique_ptr<RankCompute> compute, BatchSource batches);

  struct ChosenPlan {
    std::shared_ptr<const v1::Plan> plan;
    bool used_fallback = false;
    bool stop = false;
    uint64_t digest = 0;
    v1::NoPlanReason no_plan_reason = v1::NO_PLAN_REASON_NONE;
    uint64_t leader_epoch = 0;
    uint64_t generation = 0;
  };
  absl::StatusOr<ChosenPlan> ChoosePlan(const v1::GlobalBatch& batch, bool stop_requested,
                                        RankStepStats& stats);
  absl::Status ReduceAndUpdate(RankStepStats& stats);
  absl::Status RecordPlan(const ChosenPlan& chosen, uint64_t step);
  void Report(const v1::GlobalBatch& batch, const ChosenPlan& chosen, v1::RankTelemetry telemetry,
              const RankStepStats& stats);
  // Loads what training starts from, and refuses what does not belong together.
  static absl::Status Initialize(const TrainOptions& options, const data::IndexedDataset& dataset,
                                 const Checkpoint* checkpoint, RankCompute& compute);
  TrainPosition Position() const;
  bool Audits(uint64_t step) const {
    return options_.audit_every > 0 && step % options_.audit_every == 0;
  }
  uint64_t LookaheadSteps() const { return std::max<uint64_t>(1, options_.plan.lookahead_steps()); }

  const TrainOptions options_;
  const TrainerDependencies dependencies_;
  const uint32_t rank_;
  std::unique_ptr<RankCompute> compute_;
  BatchSource batches_;
  CoverageNotes notes_;
  std::optional<CheckpointStore> checkpoints_;
  std::vector<uint64_t> skipped_steps_;
  uint32_t skipped_in_a_row_ = 0;
  uint64_t base_fingerprint_ = 0;  // of the model under adapters
  StepRecord record_;
  std::unique_ptr<GpuMonitor> gpu_;  // null on a CPU
};

}  // namespace sparsebalance
