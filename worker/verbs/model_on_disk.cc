#include "worker/verbs/model_on_disk.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/model_io/hf_config.h"

namespace sparsebalance {

std::string_view ModelFormName(ModelForm form) {
  switch (form) {
    case ModelForm::kHuggingFace:
      return "Hugging Face folder";
    case ModelForm::kAdapter:
      return "PEFT adapter";
    case ModelForm::kCheckpoint:
      return "checkpoint";
    case ModelForm::kFile:
      break;
  }
  return "safetensors file";
}

absl::StatusOr<ModelOnDisk> OpenModelOnDisk(const std::string& path, const std::string& base) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  }
  ModelOnDisk out;
  out.path = path;
  if (!std::filesystem::is_directory(path, error)) {
    SB_ASSIGN_OR_RETURN(out.weights, model_io::HfWeights::OpenFile(path));
    return out;
  }
  if (std::filesystem::exists(absl::StrCat(path, "/", kCheckpointManifestFile), error)) {
    out.form = ModelForm::kCheckpoint;
    SB_ASSIGN_OR_RETURN(out.manifest, ReadManifest(path));
    SB_ASSIGN_OR_RETURN(
        out.weights, model_io::HfWeights::OpenFile(absl::StrCat(path, "/", kCheckpointModelFile)));
    if (out.manifest->position.model.has_value()) {
      out.config = *out.manifest->position.model;
      if (out.config->lora.enabled()) {
        out.adapter = {out.config->lora, base.empty() ? out.manifest->position.base_model : base};
      }
    } else {
      out.config = absl::FailedPreconditionError(absl::StrCat(
          "checkpoint ", path, " was written by a version that did not state the model's shape ",
          "(only '", out.manifest->position.model_class,
          "'); resume it once with --resume, the new checkpoint states it"));
    }
    return out;
  }
  if (model_io::IsAdapterFolder(path)) {
    out.form = ModelForm::kAdapter;
    SB_ASSIGN_OR_RETURN(out.adapter, model_io::ReadAdapterConfig(path));
    SB_ASSIGN_OR_RETURN(out.weights, model_io::HfWeights::OpenFile(
                                         absl::StrCat(path, "/", model_io::kAdapterWeightsFile)));
    const auto folder = model_io::BaseFolder(path, out.adapter->base_model, base);
    if (!folder.ok()) {
      out.config = folder.status();
      return out;
    }
    out.adapter->base_model = *folder;
    out.config = model_io::ReadHfConfig(*folder);
    if (out.config.ok()) out.config->lora = out.adapter->lora;
    return out;
  }
  if (!std::filesystem::exists(absl::StrCat(path, "/", model_io::kConfigFile), error)) {
    return absl::NotFoundError(absl::StrCat(
        path, " is no model: it has neither ", model_io::kConfigFile, " (a Hugging Face folder), ",
        model_io::kAdapterConfigFile, " (a PEFT adapter), nor ", kCheckpointManifestFile,
        " (a checkpoint, DIR/step-XXXXXXXX)"));
  }
  out.form = ModelForm::kHuggingFace;
  out.config = model_io::ReadHfConfig(path);
  SB_ASSIGN_OR_RETURN(out.weights, model_io::HfWeights::Open(path));
  return out;
}

absl::StatusOr<model_io::TensorSource> AdaptersOf(const ModelOnDisk& model) {
  if (!model.adapter.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(model.path, " has no adapters"));
  }
  if (!model.config.ok()) return model.config.status();
  return model_io::AdapterSourceOf(model.weights, *model.config,
                                   model.form == ModelForm::kAdapter ? model_io::kPeftPrefix : "");
}

}  // namespace sparsebalance
