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
#include "worker/train/checkpoint.h"
#include "worker/train/train_options.h"

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
      absl::StrCat("there is no checkpoint in ", path, " (a folder step-N, or one of such)"));
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& path, const model::ModelConfig& config,
                                      const std::string& backend, int threads) {
  SB_ASSIGN_OR_RETURN(const Checkpoint checkpoint, FindCheckpoint(path));
  if (checkpoint.position.model_class != ModelClass(config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint ", checkpoint.folder, " holds a model of another shape (",
        checkpoint.position.model_class, ") than the flags describe (", ModelClass(config), ")"));
  }
  LoadedModel loaded;
  loaded.folder = checkpoint.folder;
  loaded.step = checkpoint.position.next_step;
  SB_ASSIGN_OR_RETURN(loaded.backend, kernels::CreateBackend(backend, {.threads = threads}));
  SB_ASSIGN_OR_RETURN(loaded.model,
                      model::Transformer::Create(config, loaded.backend.get(), /*seed=*/0));
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
