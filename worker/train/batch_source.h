// The global batches of a run, step by step, as every node computes them for itself.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsebalance/v1/coordinator.pb.h"
#include "worker/data/global_batch_sampler.h"
#include "worker/data/indexed_dataset.h"
#include "worker/train/carried_sequences.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

// Where a run stands in its data.
struct BatchPosition {
  uint64_t step = 0;
  data::SamplerPosition sampler;  // of the step's batch
  std::vector<CarriedSequence> carried;
};

class BatchSource {
 public:
  // INVALID_ARGUMENT where the position is not one of this data set. `dataset` outlives it.
  static absl::StatusOr<BatchSource> Create(const TrainOptions& options,
                                            const data::IndexedDataset* dataset,
                                            BatchPosition position);

  // The batch of the next step, and of the one after it (for the prefetch of its plan). With
  // look-ahead they carry the batches that follow in the same epoch.
  absl::StatusOr<v1::GlobalBatch> Current();
  absl::StatusOr<v1::GlobalBatch> Following();
  // Exchanges of the agreed plan of the current batch, which CheckPlanForRank has found to fit.
  // Current() is then what the step trains.
  absl::Status Exchange(const google::protobuf::RepeatedPtrField<v1::SequenceExchange>& exchanges);
  // The current batch has been consumed.
  void Advance();

  uint64_t step() const { return step_; }
  // Of the current batch: what a checkpoint holds.
  BatchPosition Position() const;

 private:
  struct Carried {
    uint64_t id;
    uint64_t home_step;
  };

  BatchSource(const data::IndexedDataset* dataset, data::GlobalBatchSampler sampler, uint64_t step,
              uint64_t lookahead_steps)
      : dataset_(dataset),
        sampler_(std::move(sampler)),
        step_(step),
        lookahead_steps_(lookahead_steps) {}

  absl::StatusOr<v1::GlobalBatch> Make(uint64_t ahead);
  absl::Status AddSequences(const data::GlobalBatch& sampled, uint64_t step,
                            google::protobuf::RepeatedPtrField<v1::BatchSequence>& out);
  absl::StatusOr<v1::BatchSequence> Look(uint64_t id);

  const data::IndexedDataset* dataset_;
  data::GlobalBatchSampler sampler_;
  uint64_t step_;
  uint64_t lookahead_steps_;             // >= 1
  std::map<uint64_t, Carried> carried_;  // by place
  // Supervised tokens are counted once a sequence, not once a look.
  std::map<uint64_t, v1::BatchSequence> looked_at_;  // by id
};

// What the fallback plan of a batch is made from; the same on every rank.
v1::PlanRequest FallbackRequest(const v1::PlanSettings& settings, const v1::GlobalBatch& batch);

// Whether a plan can be trained on by `rank`: its exchanges are between the batch and those that
// follow and move no sequence as far as `lookahead_steps`; its slices are whole sequences of what
// is then the batch, and its divisor of the loss is theirs. INVALID_ARGUMENT says what is wrong.
absl::Status CheckPlanForRank(const v1::Plan& plan, uint32_t rank, const v1::GlobalBatch& batch,
                              uint64_t lookahead_steps);

}  // namespace sparsebalance
