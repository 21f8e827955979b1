#include "worker/eval/load_model.h"

#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/create_backend.h"
#include "kernels/status_macros.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/hf_config.h"
#include "worker/model_io/peft_adapter.h"
#include "worker/train/checkpoint.h"
#include "worker/train/device_choice.h"

namespace sparsebalance::eval {
namespace {

absl::StatusOr<Checkpoint> FindCheckpoint(const std::string& path) {
  const CheckpointStore store(path, 1, [](const std::string&) {});
  std::error_code error;
  if (std::filesystem::exists(path + "/manifest.json", error)) {
    absl::StatusOr<Checkpoint> checkpoint = store.Load(path);
    if (checkpoint.ok()) return checkpoint;
    return absl::Status(checkpoint.status().code(),
                        absl::StrCat("checkpoint ", path, ": ", checkpoint.status().message()));
  }
  SB_ASSIGN_OR_RETURN(std::optional<Checkpoint> newest, store.LoadNewest());
  if (newest.has_value()) return *std::move(newest);
  return absl::NotFoundError(absl::StrCat(
      "there is no model in ", path,
      " (a checkpoint's folder step-N, a folder of such, or a folder of a Hugging Face "
      "model or PEFT adapter)"));
}

absl::StatusOr<LoadedModel> Create(model::ModelConfig config, const LoadOptions& options) {
  if (options.block_tokens > 0) config.block_tokens = options.block_tokens;
  LoadedModel loaded;
  SB_ASSIGN_OR_RETURN(const kernels::BackendChoice choice, kernels::ChooseBackend(options.backend));
  SB_ASSIGN_OR_RETURN(const kernels::ElementType type,
                      ChoosePrecision(options.precision, choice.name));
  SB_ASSIGN_OR_RETURN(
      loaded.backend,
      kernels::CreateBackend(choice.name, {.threads = options.threads, .activation_type = type}));
  SB_ASSIGN_OR_RETURN(loaded.model,
                      model::Transformer::Create(config, loaded.backend.get(), /*seed=*/0));
  return loaded;
}

// The model of a Hugging Face folder, with adapters as `lora` says that change nothing yet.
absl::StatusOr<LoadedModel> FromHuggingFace(const std::string& path, const model::LoraConfig& lora,
                                            const LoadOptions& options) {
  SB_ASSIGN_OR_RETURN(model::ModelConfig config, model_io::ReadHfConfig(path));
  config.lora = lora;
  SB_ASSIGN_OR_RETURN(const model_io::HfWeights weights, model_io::HfWeights::Open(path));
  SB_RETURN_IF_ERROR(weights.CheckFits(config, [](const std::string&) {}));
  SB_ASSIGN_OR_RETURN(LoadedModel loaded, Create(config, options));
  SB_RETURN_IF_ERROR(weights.Load(loaded.backend.get(), loaded.model->store()));
  loaded.folder = path;
  return loaded;
}

absl::StatusOr<LoadedModel> FromAdapter(const std::string& path, const LoadOptions& options) {
  SB_ASSIGN_OR_RETURN(const model_io::AdapterConfig adapter, model_io::ReadAdapterConfig(path));
  SB_ASSIGN_OR_RETURN(const std::string base,
                      model_io::BaseFolder(path, adapter.base_model, options.base_model));
  SB_ASSIGN_OR_RETURN(LoadedModel loaded, FromHuggingFace(base, adapter.lora, options));
  SB_ASSIGN_OR_RETURN(
      const model_io::HfWeights weights,
      model_io::HfWeights::OpenFile(absl::StrCat(path, "/", model_io::kAdapterWeightsFile)));
  SB_ASSIGN_OR_RETURN(
      const model_io::TensorSource source,
      model_io::AdapterSourceOf(weights, loaded.model->config(), model_io::kPeftPrefix));
  SB_RETURN_IF_ERROR(model_io::LoadAdapters(source, loaded.backend.get(), loaded.model->store()));
  loaded.folder = path;
  return loaded;
}

// The model under a checkpoint's adapters.
absl::StatusOr<LoadedModel> BaseOf(const Checkpoint& checkpoint, const LoadOptions& options) {
  const TrainPosition& position = checkpoint.position;
  SB_ASSIGN_OR_RETURN(
      const std::string base,
      model_io::BaseFolder(checkpoint.folder, position.base_model, options.base_model));
  LoadOptions as_trained = options;
  if (options.block_tokens == 0) as_trained.block_tokens = position.model->block_tokens;
  SB_ASSIGN_OR_RETURN(LoadedModel loaded, FromHuggingFace(base, position.model->lora, as_trained));
  SB_ASSIGN_OR_RETURN(const uint64_t fingerprint,
                      model_io::Fingerprint(model_io::SourceOf(
                          loaded.backend.get(), loaded.model->store()->base_parameters())));
  if (fingerprint != position.base_fingerprint) {
    return absl::InvalidArgumentError(absl::StrCat("the model in ", base,
                                                   " is not the one that the adapters of ",
                                                   checkpoint.folder, " were trained on"));
  }
  return loaded;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& path, const LoadOptions& options) {
  std::error_code error;
  if (std::filesystem::exists(path + "/" + model_io::kConfigFile, error)) {
    return FromHuggingFace(path, {}, options);
  }
  if (model_io::IsAdapterFolder(path)) return FromAdapter(path, options);
  SB_ASSIGN_OR_RETURN(const Checkpoint checkpoint, FindCheckpoint(path));
  const TrainPosition& position = checkpoint.position;
  if (!position.model.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", checkpoint.folder, " does not state its model's shape (",
                     position.model_class,
                     "): it is of an earlier version; resume the run once to write a new one"));
  }
  SB_ASSIGN_OR_RETURN(LoadedModel loaded, position.model->lora.enabled()
                                              ? BaseOf(checkpoint, options)
                                              : Create(*position.model, options));
  loaded.folder = checkpoint.folder;
  loaded.step = position.next_step;
  for (const model::Parameter& parameter : loaded.model->parameters()) {
    if (!parameter.trainable()) continue;
    SB_ASSIGN_OR_RETURN(const std::span<const float> data,
                        checkpoint.model.Get(parameter.name, parameter.shape));
    SB_RETURN_IF_ERROR(loaded.model->store()->Write(parameter, data));
  }
  return loaded;
}

}  // namespace sparsebalance::eval
