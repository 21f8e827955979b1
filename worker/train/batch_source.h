// The global batches of a run, step by step, as every node computes them for itself.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "sparsebalance/v1/coordinator.pb.h"
#include "worker/data/global_batch_sampler.h"
#include "worker/data/indexed_dataset.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

class BatchSource {
 public:
  // Starts at step `next_step`, whose batch begins at `position`. `dataset` outlives it.
  static absl::StatusOr<BatchSource> Create(const TrainOptions& options,
                                            const data::IndexedDataset* dataset, uint64_t next_step,
                                            data::SamplerPosition position);

  // The batch of the next step, and of the one after it (for the prefetch of its plan).
  absl::StatusOr<v1::GlobalBatch> Current();
  absl::StatusOr<v1::GlobalBatch> Following();
  // The current batch has been consumed.
  void Advance();

  // Position of the current batch: what a checkpoint holds.
  uint64_t step() const { return step_; }
  data::SamplerPosition position() const { return sampler_.position(); }

 private:
  BatchSource(const data::IndexedDataset* dataset, data::GlobalBatchSampler sampler, uint64_t step)
      : dataset_(dataset), sampler_(std::move(sampler)), step_(step) {}
  absl::StatusOr<v1::GlobalBatch> Make(uint64_t ahead);

  const data::IndexedDataset* dataset_;
  data::GlobalBatchSampler sampler_;
  uint64_t step_;
  // Supervised tokens are counted once a sequence, not once a look.
  std::map<uint64_t, v1::GlobalBatch> made_;  // by step
};

// What the fallback plan of a batch is made from; the same on every rank.
v1::PlanRequest FallbackRequest(const v1::PlanSettings& settings, const v1::GlobalBatch& batch);

// Whether a plan can be trained on by `rank`: its slices are whole sequences of the batch and its
// divisor of the loss is the batch's. INVALID_ARGUMENT says what is wrong.
absl::Status CheckPlanForRank(const v1::Plan& plan, uint32_t rank, const v1::GlobalBatch& batch);

}  // namespace sparsebalance
