// A model in any of the forms that the verbs take: a Hugging Face folder, a safetensors file, or a
// checkpoint of ours (DIR/step-00000012).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/config.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/train/checkpoint_manifest.h"

namespace sparsebalance {

enum class ModelForm { kHuggingFace, kFile, kCheckpoint };

std::string_view ModelFormName(ModelForm form);

struct ModelOnDisk {
  ModelForm form = ModelForm::kFile;
  std::string path;
  model_io::HfWeights weights;
  // Why there is no config: the form has none, or it describes a model that we do not compute.
  absl::StatusOr<model::ModelConfig> config =
      absl::NotFoundError("a file of tensors has no config");
  std::optional<CheckpointManifest> manifest;  // of a checkpoint
};

// Reads headers only. NOT_FOUND where nothing is there or the folder holds no model; DATA_LOSS for
// a broken file.
absl::StatusOr<ModelOnDisk> OpenModelOnDisk(const std::string& path);

}  // namespace sparsebalance
