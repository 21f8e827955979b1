// One rank's share of a step on its device: forward and backward of its micro-batches, and the
// update. Knows plans, knows nothing of other ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "sparsebalance/v1/plan.pb.h"
#include "sparsebalance/v1/telemetry.pb.h"
#include "worker/comm/communicator.h"
#include "worker/data/indexed_dataset.h"
#include "worker/model/adamw.h"
#include "worker/model/transformer.h"
#include "worker/model_io/tensor_info.h"
#include "worker/train/gradient_reducer.h"
#include "worker/train/step_record.h"
#include "worker/train/tensor_file.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

class RankCompute {
 public:
  // `dataset` outlives it. `device`: which of the machine's GPUs, where the backend is CUDA.
  static absl::StatusOr<std::unique_ptr<RankCompute>> Create(const TrainOptions& options,
                                                             const data::IndexedDataset* dataset,
                                                             int device);

  // The communicator that sums the gradients; before the first Run(). It outlives this.
  absl::Status Connect(Communicator* comm);

  // Runs the micro-batches in the plan's order on zeroed gradients of
  // (sum of losses) / global_supervised_tokens. The step and a sequence's id choose what dropout
  // drops of it. Adds what was measured to `telemetry`
  // (micro-batches, loss, tokens) and `stats`. `audit`: measures attention mass too.
  // Begins to sum the gradients over the ranks: from here to the end of ReduceGradients() no other
  // collective may be called.
  absl::Status Run(const v1::RankPlan& plan, uint64_t step, uint64_t global_supervised_tokens,
                   bool audit, v1::RankTelemetry& telemetry, RankStepStats& stats);

  // Ends that sum. stats.idle_ms becomes the time from this rank's end of backward to the end of
  // the sum: waiting for others, and communication that backward did not hide.
  absl::Status ReduceGradients(RankStepStats& stats);
  // Of the reduced gradients; not finite where one of them is not.
  absl::StatusOr<double> GradientNorm();
  absl::Status Update(double learning_rate, double gradient_scale);

  // For a checkpoint: what is trained, the adapters alone where there are some. The views live
  // until the next call of either.
  absl::StatusOr<std::vector<TensorView>> ModelTensors();
  absl::StatusOr<std::vector<TensorView>> OptimizerTensors();
  absl::Status Restore(const TensorFile& model, const TensorFile& optimizer,
                       uint64_t optimizer_steps);
  // The parameters of a Hugging Face folder. NOT_FOUND or INVALID_ARGUMENT naming a tensor that is
  // missing, misshapen or not of this model.
  absl::Status InitFrom(const std::string& folder);
  // The adapters of a PEFT folder; errors alike.
  absl::Status InitAdaptersFrom(const std::string& folder);
  // Writes the model there, or its adapters; the optimizer's state is not part of it.
  absl::Status Export(const std::string& folder, model_io::ElementType type);
  // The same where parameters are the same bit by bit: all, and those under the adapters.
  absl::StatusOr<uint64_t> ModelFingerprint();
  absl::StatusOr<uint64_t> BaseFingerprint();
  // What is trained and how it decays, for the log.
  absl::StatusOr<std::string> DescribeTraining() const;
  uint64_t optimizer_steps() const { return static_cast<uint64_t>(optimizer_->step()); }

  struct Timing {
    double forward_ms = 0;
    double backward_ms = 0;
  };
  // One sequence of `tokens` tokens at a fixed budget, forward and backward, without an update.
  absl::StatusOr<Timing> Measure(uint64_t tokens, uint32_t budget_blocks);

  std::string_view backend_name() const { return backend_->name(); }
  std::string_view device_bus_id() const { return backend_->device_bus_id(); }

 private:
  RankCompute(const TrainOptions& options, const data::IndexedDataset* dataset)
      : options_(options), dataset_(dataset) {}

  absl::StatusOr<model::MicroBatch> BuildMicroBatch(const v1::MicroBatch& planned,
                                                    uint64_t step) const;
  // Views of one named tensor a trained parameter in a host copy of its arena.
  std::vector<TensorView> Views(const std::vector<float>& arena, const std::string& suffix) const;

  const TrainOptions options_;
  const data::IndexedDataset* const dataset_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Transformer> model_;
  std::unique_ptr<model::AdamW> optimizer_;
  std::unique_ptr<GradientReducer> reducer_;  // null where there is one rank alone
  std::unique_ptr<kernels::Event> computed_;  // the end of the step's last backward pass
  double peak_flops_ = 0;                     // a second, of the device; 0: not known
  std::vector<float> host_model_;
  model::AdamWState host_optimizer_;
};

}  // namespace sparsebalance
