// Everything that describes a training job on the worker's side, in one plain struct. The flags of
// sparsebalance-worker (worker_flags.h) fill it; JobSpecFromOptions states the part that the
// coordinator and the other nodes must agree on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sparsebalance/v1/coordinator.pb.h"
#include "worker/model/adamw.h"
#include "worker/model/config.h"
#include "worker/model/schedule.h"
#include "worker/model_io/tensor_info.h"

namespace sparsebalance {

namespace data {
class IndexedDataset;
}

struct OptimizerOptions {
  double learning_rate = 3e-4;  // peak, after the warm-up
  double min_learning_rate = 3e-5;
  uint64_t warmup_steps = 10;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices
  std::vector<model::WeightDecayGroup> weight_decay_groups;
  double gradient_clip = 1.0;  // of the global norm; 0: off
};

struct TrainOptions {
  v1::JobKey job;
  v1::Parallelism parallelism;
  v1::PlanSettings plan;
  model::ModelConfig model;
  OptimizerOptions optimizer;

  std::string dataset_prefix;
  uint32_t global_batch_size = 16;  // sequences a step
  uint64_t steps = 100;             // of the whole run
  uint64_t seed = 1;                // of the parameters and of the order of the data

  std::string backend = "auto";       // auto, cpu or cuda; device_choice.h settles these three
  std::string precision = "auto";     // of activations: auto, fp32 or bf16
  std::string device_name;            // of the GPUs; empty: a CPU
  std::string communicator = "auto";  // auto, nccl or gloo; auto: nccl on GPUs where it is built
  int threads_per_rank = 1;           // CPU threads of a rank
  int64_t memory_limit_bytes = 0;     // of a rank; 0: none

  // What a rank's device can do a second, 10^12 operations, for the MFU; 0: as known of the GPU.
  double peak_tflops = 0;
  // How long a step may wait for its plan before it is trained by the fallback.
  absl::Duration plan_deadline = absl::Milliseconds(250);
  // How long a rank waits for a peer in a collective before it holds it for lost.
  absl::Duration collective_timeout = absl::Minutes(5);

  std::string checkpoint_dir;     // empty: no checkpoints
  uint64_t checkpoint_every = 0;  // steps; 0: only when asked to stop and at the end
  uint32_t checkpoints_kept = 2;  // older ones are removed
  bool resume = false;            // from the newest good checkpoint, where there is one

  // Every so many steps coverage is held against true attention mass on `audit_queries` queries of
  // every sequence; 0: never.
  uint64_t audit_every = 10;
  int audit_queries = 16;

  // Folder of a Hugging Face model whose parameters training starts from; `model` is its shape.
  // Empty: parameters are drawn by `seed`. A checkpoint that is resumed wins; one of adapters holds
  // nothing else, so that what they adapt is read from here again.
  std::string init_from;
  // Folder of a PEFT adapter whose values the model's adapters start from; empty: as no change.
  std::string lora_init_from;
  // Folder that gets the trained model in Hugging Face form once all steps are done, or the trained
  // adapters in PEFT's; empty: none. Training is in float32, so another type rounds.
  std::string export_dir;
  model_io::ElementType export_type = model_io::ElementType::kF32;

  // Steps in a row whose gradient is not finite before the run stops.
  uint32_t max_skipped_in_a_row = 5;
};

// What all nodes must agree on. Its strings are stable: they name the latency profile.
v1::JobSpec JobSpecFromOptions(const TrainOptions& options, const data::IndexedDataset& dataset);

// INVALID_ARGUMENT for the first problem: sizes, pipeline or sequence degrees above 1 (workers of
// this version do not split a model). A vocabulary of 0, which the data set will decide, is none.
absl::Status ValidateTrainOptions(const TrainOptions& options);

// The same together with the data: a vocabulary smaller than the data set's, a sequence that no
// micro-batch holds.
absl::Status ValidateTrainOptions(const TrainOptions& options, const data::IndexedDataset& dataset);

// Of the learning rate; a warm-up longer than the run is cut to it.
model::LearningRateSchedule ScheduleOf(const TrainOptions& options);

// Names of this machine's device and of the model's shape, for example `cpu AMD EPYC, 1 thread`
// or `NVIDIA H200, bf16`, and `qwen2 l4 h128 a4/4 f352 v264 b64`.
std::string DeviceClass(const TrainOptions& options);
std::string ModelClass(const model::ModelConfig& config);
// Of a latency profile: the same where steps take the same time, so that checkpointed activations
// are told apart.
std::string ProfileClass(const model::ModelConfig& config);

}  // namespace sparsebalance
