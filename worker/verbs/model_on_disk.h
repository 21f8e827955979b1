// A model in any of the forms that the verbs take: a Hugging Face folder, a PEFT adapter, a
// safetensors file, or a checkpoint of ours (DIR/step-00000012).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/config.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/peft_adapter.h"
#include "worker/train/checkpoint_manifest.h"

namespace sparsebalance {

enum class ModelForm { kHuggingFace, kAdapter, kFile, kCheckpoint };

std::string_view ModelFormName(ModelForm form);

struct ModelOnDisk {
  ModelForm form = ModelForm::kFile;
  std::string path;
  model_io::HfWeights weights;
  // Where `weights` are adapters alone: of which shape, and the folder of their model. `config` is
  // then the whole model's, adapters included.
  std::optional<model_io::AdapterConfig> adapter;
  // Why there is no config: the form has none, or it describes a model that we do not compute.
  absl::StatusOr<model::ModelConfig> config =
      absl::NotFoundError("a file of tensors has no config");
  std::optional<CheckpointManifest> manifest;  // of a checkpoint
};

// Reads headers only. `base` is the folder of the model that adapters are for, where it is not the
// one that they name. NOT_FOUND where nothing is there or the folder holds no model; DATA_LOSS for
// a broken file.
absl::StatusOr<ModelOnDisk> OpenModelOnDisk(const std::string& path, const std::string& base = "");

// The adapters, by the model's names; `model` outlives the source. INVALID_ARGUMENT where there are
// none; errors of model_io::AdapterSourceOf.
absl::StatusOr<model_io::TensorSource> AdaptersOf(const ModelOnDisk& model);

}  // namespace sparsebalance
