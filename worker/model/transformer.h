#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"
#include "worker/model/micro_batch.h"
#include "worker/model/parameters.h"
#include "worker/model/token_scores.h"

namespace sparsebalance::model {

// A decoder-only transformer of the Qwen2 family: RMSNorm, rotary embeddings, grouped-query
// block-sparse attention with biases on q, k and v, SwiGLU. Used by one thread at a time.
//
//   auto model = Transformer::Create(config, backend, /*seed=*/1);
//   (*model)->ZeroGrads();
//   for (const MicroBatch& mb : rank_plan)
//     (*model)->ForwardBackward(mb, 1.0 / global_supervised_tokens, /*coverage_guard=*/0.1);
//   communicator.AllReduce((*model)->grads());   // SUM
class Transformer {
 public:
  // The backend must outlive the model. INVALID_ARGUMENT for a bad config, RESOURCE_EXHAUSTED where
  // values and gradients do not fit.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             kernels::Backend* backend,
                                                             uint64_t seed);

  // Adds the gradients of loss_scale * (sum of the losses) to grads(). loss_scale is 1 /
  // (supervised tokens of the whole global batch). A budget below the base one is raised in each
  // layer in which coverage would fall under (1 - coverage_guard) times that of the base budget.
  // Micro-batches whose weights are all 0 run forward and backward too and add zeros.
  // `ready`, which may be null, is called during backward when nothing more will be added to
  // elements [begin, end) of grads() by this micro-batch, once the work that is enqueued so far is
  // done; from the end of grads() to its begin. Its error ends the pass.
  using GradsReady = std::function<absl::Status(int64_t begin, int64_t end)>;
  absl::StatusOr<MicroBatchReport> ForwardBackward(const MicroBatch& batch, double loss_scale,
                                                   double coverage_guard,
                                                   const GradsReady& ready = nullptr);
  // The same in two steps, so that the device need not be waited for between micro-batches: Enqueue
  // returns when all work is enqueued (audits alone wait), Collect when it is done.
  class Pending {
   public:
    virtual ~Pending() = default;
  };
  absl::StatusOr<std::unique_ptr<Pending>> Enqueue(const MicroBatch& batch, double loss_scale,
                                                   double coverage_guard,
                                                   const GradsReady& ready = nullptr);
  absl::StatusOr<MicroBatchReport> Collect(std::unique_ptr<Pending> pending);
  // Forward only, without keeping activations: backward times are 0.
  absl::StatusOr<MicroBatchReport> Loss(const MicroBatch& batch, double coverage_guard);
  // The logits of every token, [tokens, vocab_size] on the host; for evaluation of short batches.
  absl::StatusOr<std::vector<float>> Logits(const MicroBatch& batch, double coverage_guard);
  // The same pass, token by token.
  absl::StatusOr<std::vector<TokenScore>> Scores(const MicroBatch& batch, double coverage_guard);

  absl::Status ZeroGrads();

  const ModelConfig& config() const { return config_; }
  const std::vector<Parameter>& parameters() const { return store_->parameters(); }
  // One contiguous arena each; see ParameterStore.
  ConstDeviceBuffer values() const { return store_->values(); }
  DeviceBuffer grads() const { return store_->grads(); }
  ParameterStore* store() { return store_.get(); }

 private:
  Transformer(const ModelConfig& config, kernels::Backend* backend,
              std::unique_ptr<ParameterStore> store)
      : config_(config), backend_(backend), store_(std::move(store)) {}

  absl::StatusOr<std::unique_ptr<Pending>> Run(const MicroBatch& batch, double loss_scale,
                                               double coverage_guard, bool backward,
                                               const GradsReady& ready = nullptr,
                                               std::vector<float>* logits = nullptr,
                                               std::vector<TokenScore>* scores = nullptr);

  ModelConfig config_;
  kernels::Backend* backend_;
  std::unique_ptr<ParameterStore> store_;
};

}  // namespace sparsebalance::model
