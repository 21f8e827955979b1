#include "worker/train/train_options.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/planner.h"
#include "kernels/status_macros.h"
#include "worker/data/indexed_dataset.h"

namespace sparsebalance {
namespace {

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) break;
    const absl::string_view name = absl::StripAsciiWhitespace(
        absl::string_view(line.data() + colon + 1, line.size() - colon - 1));
    if (!name.empty()) return std::string(name.data(), name.size());
  }
  return "unknown processor";
}

}  // namespace

std::string DeviceClass(const TrainOptions& options) {
  if (!options.device_name.empty()) {
    return absl::StrCat(options.device_name, ", ", options.precision);
  }
  return absl::StrCat("cpu ", ProcessorName(), ", ", options.threads_per_rank,
                      options.threads_per_rank == 1 ? " thread" : " threads");
}

std::string ModelClass(const model::ModelConfig& config) {
  return absl::StrFormat("qwen2 l%d h%d a%d/%dx%d f%d v%d b%d%s", config.num_layers,
                         config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
                         config.intermediate_size, config.vocab_size, config.block_tokens,
                         config.tie_embeddings ? " tied" : "");
}

std::string ProfileClass(const model::ModelConfig& config) {
  std::string out = ModelClass(config);
  if (config.activation_checkpointing) out += " checkpointed";
  if (config.lora.enabled()) {
    absl::StrAppend(&out, " lora ", config.lora.rank, " ",
                    model::ProjectionsText(config.lora.targets));
  }
  if (config.Drops()) out += " dropout";
  return out;
}

model::LearningRateSchedule ScheduleOf(const TrainOptions& options) {
  model::LearningRateSchedule schedule;
  schedule.peak = options.optimizer.learning_rate;
  schedule.minimum = options.optimizer.min_learning_rate;
  schedule.total_steps = static_cast<int64_t>(std::max<uint64_t>(1, options.steps));
  schedule.warmup_steps =
      std::min(static_cast<int64_t>(options.optimizer.warmup_steps), schedule.total_steps);
  return schedule;
}

v1::JobSpec JobSpecFromOptions(const TrainOptions& options, const data::IndexedDataset& dataset) {
  v1::JobSpec spec;
  *spec.mutable_job() = options.job;
  *spec.mutable_parallelism() = options.parallelism;
  *spec.mutable_plan() = options.plan;
  spec.set_num_layers(static_cast<uint32_t>(options.model.num_layers));
  spec.set_device_class(DeviceClass(options));
  spec.set_model_class(ProfileClass(options.model));
  spec.set_dataset_fingerprint(dataset.fingerprint());
  spec.set_dataset_sequences(dataset.size());
  spec.set_global_batch_size(options.global_batch_size);
  return spec;
}

absl::Status ValidateTrainOptions(const TrainOptions& options) {
  const v1::Parallelism& parallelism = options.parallelism;
  if (parallelism.data() < 1) return absl::InvalidArgumentError("--data-parallel must be above 0");
  if (parallelism.pipeline() > 1 || parallelism.sequence() > 1) {
    return absl::UnimplementedError(absl::StrCat(
        "--pipeline-parallel ", parallelism.pipeline(), " and --sequence-parallel ",
        parallelism.sequence(),
        ": workers of this version hold the whole model on every rank; both must be 1"));
  }
  if (options.global_batch_size < 1) {
    return absl::InvalidArgumentError("--global-batch-size must be above 0");
  }
  if (options.threads_per_rank < 1) {
    return absl::InvalidArgumentError("--threads-per-rank must be above 0");
  }
  SB_RETURN_IF_ERROR(planner::ValidateSettings(options.plan));
  model::ModelConfig model = options.model;
  if (model.vocab_size == 0) model.vocab_size = 1;
  SB_RETURN_IF_ERROR(model.Validate());
  if (options.model.lora.enabled() && options.init_from.empty()) {
    return absl::InvalidArgumentError(
        "adapters are trained on top of a model that is there: give its folder in --init-from");
  }
  return ScheduleOf(options).Validate();
}

absl::Status ValidateTrainOptions(const TrainOptions& options,
                                  const data::IndexedDataset& dataset) {
  SB_RETURN_IF_ERROR(ValidateTrainOptions(options));
  SB_RETURN_IF_ERROR(options.model.Validate());
  const auto& metadata = dataset.metadata();
  if (metadata.has_value() && metadata->vocabulary_size > options.model.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data set ", options.dataset_prefix, " has a vocabulary of ",
                     metadata->vocabulary_size, " tokens, the model of ", options.model.vocab_size,
                     options.init_from.empty()
                         ? " (--vocabulary-size)"
                         : absl::StrCat(" (vocab_size of --init-from ", options.init_from, ")")));
  }
  const uint64_t cap = options.plan.max_tokens_per_micro_batch();
  const uint64_t multiple = std::max<uint32_t>(1, options.plan.padding_multiple());
  for (uint64_t id = 0; id < dataset.size(); ++id) {
    const auto tokens = static_cast<uint64_t>(dataset.lengths()[id]);
    if (tokens == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", id, " of ", options.dataset_prefix, " has no token"));
    }
    if ((tokens + multiple - 1) / multiple * multiple > cap) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", id, " of ", options.dataset_prefix, " has ", tokens,
                       " tokens, more than a micro-batch may hold (", cap,
                       "); raise --max-tokens-per-micro-batch, or pack with --max-tokens ", cap));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
