#include "worker/eval/load_model.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/hf_config.h"
#include "worker/train/checkpoint.h"

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
  return absl::NotFoundError(
      absl::StrCat("there is no model in ", path,
                   " (a checkpoint's folder step-N, a folder of such, or a Hugging Face folder)"));
}

absl::StatusOr<LoadedModel> Create(model::ModelConfig config, int block_tokens,
                                   const std::string& backend, int threads) {
  if (block_tokens > 0) config.block_tokens = block_tokens;
  LoadedModel loaded;
  SB_ASSIGN_OR_RETURN(loaded.backend, kernels::CreateBackend(backend, {.threads = threads}));
  SB_ASSIGN_OR_RETURN(loaded.model,
                      model::Transformer::Create(config, loaded.backend.get(), /*seed=*/0));
  return loaded;
}

absl::StatusOr<LoadedModel> FromHuggingFace(const std::string& path, int block_tokens,
                                            const std::string& backend, int threads) {
  SB_ASSIGN_OR_RETURN(const model::ModelConfig config, model_io::ReadHfConfig(path));
  SB_ASSIGN_OR_RETURN(const model_io::HfWeights weights, model_io::HfWeights::Open(path));
  SB_RETURN_IF_ERROR(weights.CheckFits(config, [](const std::string&) {}));
  SB_ASSIGN_OR_RETURN(LoadedModel loaded, Create(config, block_tokens, backend, threads));
  SB_RETURN_IF_ERROR(weights.Load(loaded.backend.get(), loaded.model->store()));
  loaded.folder = path;
  return loaded;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& path, int block_tokens,
                                      const std::string& backend, int threads) {
  std::error_code error;
  if (std::filesystem::exists(path + "/" + model_io::kConfigFile, error)) {
    return FromHuggingFace(path, block_tokens, backend, threads);
  }
  SB_ASSIGN_OR_RETURN(const Checkpoint checkpoint, FindCheckpoint(path));
  if (!checkpoint.position.model.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", checkpoint.folder, " does not state its model's shape (",
                     checkpoint.position.model_class,
                     "): it is of an earlier version; resume the run once to write a new one"));
  }
  SB_ASSIGN_OR_RETURN(LoadedModel loaded,
                      Create(*checkpoint.position.model, block_tokens, backend, threads));
  loaded.folder = checkpoint.folder;
  loaded.step = checkpoint.position.next_step;
  std::vector<float> values(static_cast<size_t>(loaded.model->values().size()), 0.0F);
  for (const model::Parameter& parameter : loaded.model->parameters()) {
    SB_ASSIGN_OR_RETURN(const std::span<const float> data,
                        checkpoint.model.Get(parameter.name, parameter.shape));
    std::copy(data.begin(), data.end(), values.begin() + parameter.arena_offset);
  }
  SB_RETURN_IF_ERROR(loaded.backend->CopyToDevice(values, loaded.model->values()));
  return loaded;
}

}  // namespace sparsebalance::eval
