#include "worker/verbs/convert_verb.h"

#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/data/digest.h"
#include "worker/data/file_io.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/peft_adapter.h"
#include "worker/verbs/model_on_disk.h"
#include "worker/verbs/verb_main.h"

namespace sparsebalance {
namespace {

struct ConvertFlags {
  std::string from, to, base;
  bool merge = false;
  std::string dtype = "keep";
  uint64_t max_shard_bytes = model_io::SaveOptions().max_shard_bytes;
};

// A checkpoint states the checksum of its parameters: a damaged one is not worth converting.
absl::Status CheckChecksum(const CheckpointManifest& manifest, const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kCheckpointModelFile);
  SB_ASSIGN_OR_RETURN(const data::MappedFile file, data::MappedFile::Open(path));
  data::Sha256 digest;
  digest.Add(file.bytes());
  const auto stated = manifest.files.find(kCheckpointModelFile);
  if (stated == manifest.files.end() || stated->second != digest.Hex()) {
    return absl::DataLossError(absl::StrCat(path, ": its checksum does not fit the manifest"));
  }
  return absl::OkStatus();
}

void PrintWritten(const std::string& folder, const model_io::HfWeights& written) {
  uint64_t tensors = 0, parameters = 0, bytes = 0;
  for (const model_io::SafetensorsFile& file : written.files()) {
    for (const model_io::TensorInfo& tensor : file.tensors()) {
      tensors += 1;
      parameters += tensor.elements();
    }
    bytes += file.file_bytes();
  }
  std::cout << "wrote " << folder << ": " << tensors << " tensors, " << parameters
            << " parameters, " << bytes << " bytes in " << written.files().size()
            << (written.files().size() == 1 ? " file" : " files") << std::endl;
}

void Warn(const std::string& warning) { std::cerr << "convert: " << warning << "\n"; }

absl::Status ConvertModel(const ConvertFlags& flags, const model_io::SaveOptions& options,
                          const ModelOnDisk& from) {
  SB_RETURN_IF_ERROR(from.weights.CheckFits(*from.config, Warn));
  SB_ASSIGN_OR_RETURN(const model_io::TensorSource source,
                      model_io::SourceOf(from.weights, *from.config));
  return model_io::SaveModel(flags.to, *from.config, source, options);
}

absl::Status ConvertAdapters(const ConvertFlags& flags, const model_io::SaveOptions& options,
                             const ModelOnDisk& from) {
  SB_ASSIGN_OR_RETURN(const model_io::TensorSource adapters, AdaptersOf(from));
  return model_io::SaveAdapter(flags.to, *from.adapter, adapters, options.type);
}

absl::Status MergeAdapters(const ConvertFlags& flags, const model_io::SaveOptions& options,
                           const ModelOnDisk& from) {
  SB_ASSIGN_OR_RETURN(model_io::TensorSource adapters, AdaptersOf(from));
  SB_ASSIGN_OR_RETURN(const std::string folder,
                      model_io::BaseFolder(from.path, from.adapter->base_model, ""));
  SB_ASSIGN_OR_RETURN(const model_io::HfWeights base, model_io::HfWeights::Open(folder));
  SB_RETURN_IF_ERROR(base.CheckFits(*from.config, Warn));
  SB_ASSIGN_OR_RETURN(model_io::TensorSource base_source, model_io::SourceOf(base, *from.config));
  if (from.manifest.has_value()) {
    SB_ASSIGN_OR_RETURN(const uint64_t fingerprint, model_io::Fingerprint(base_source));
    if (fingerprint != from.manifest->position.base_fingerprint) {
      return absl::InvalidArgumentError(absl::StrCat("the model in ", folder,
                                                     " is not the one that the adapters of ",
                                                     from.path, " were trained on"));
    }
  }
  model::ModelConfig merged = *from.config;
  merged.lora = {};
  return model_io::SaveModel(
      flags.to, merged,
      model_io::MergedSource(std::move(base_source), std::move(adapters), from.adapter->lora),
      options);
}

absl::Status Convert(const ConvertFlags& flags) {
  model_io::SaveOptions options;
  options.max_shard_bytes = flags.max_shard_bytes;
  if (flags.dtype != "keep") {
    SB_ASSIGN_OR_RETURN(options.type, model_io::ElementTypeFromFlag(flags.dtype));
  }
  SB_ASSIGN_OR_RETURN(const ModelOnDisk from, OpenModelOnDisk(flags.from, flags.base));
  if (from.form == ModelForm::kFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.from,
                     " is a file: --from takes a folder of a Hugging Face model or "
                     "PEFT adapter, or a checkpoint"));
  }
  if (flags.merge && !from.adapter.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--merge: ", flags.from, " is a whole model, there are no adapters"));
  }
  const bool as_adapter = from.adapter.has_value() && !flags.merge;
  if (flags.merge) {
    options.companions_from = from.adapter->base_model;
  } else if (from.form == ModelForm::kHuggingFace) {
    options.companions_from = flags.from;
  }
  SB_RETURN_IF_ERROR(as_adapter ? model_io::CheckAdapterFolder(flags.to)
                                : model_io::CheckSaveFolder(flags.to, options.companions_from));
  if (!from.config.ok()) return from.config.status();
  if (from.manifest.has_value()) SB_RETURN_IF_ERROR(CheckChecksum(*from.manifest, flags.from));
  if (as_adapter) {
    SB_RETURN_IF_ERROR(ConvertAdapters(flags, options, from));
    SB_ASSIGN_OR_RETURN(
        const model_io::HfWeights written,
        model_io::HfWeights::OpenFile(absl::StrCat(flags.to, "/", model_io::kAdapterWeightsFile)));
    PrintWritten(flags.to, written);
    return absl::OkStatus();
  }
  SB_RETURN_IF_ERROR(flags.merge ? MergeAdapters(flags, options, from)
                                 : ConvertModel(flags, options, from));
  SB_ASSIGN_OR_RETURN(const model_io::HfWeights written, model_io::HfWeights::Open(flags.to));
  PrintWritten(flags.to, written);
  return absl::OkStatus();
}

}  // namespace

int RunConvertVerb(int argc, char** argv) {
  CLI::App app(
      "Writes a model as a folder that Hugging Face transformers reads, and adapters as one that "
      "PEFT reads.",
      "sparsebalance-worker convert");
  ConvertFlags flags;
  app.add_option("--from", flags.from,
                 "checkpoint folder (DIR/step-XXXXXXXX), or folder of a Hugging Face model or PEFT "
                 "adapter")
      ->required();
  app.add_flag("--merge", flags.merge,
               "add adapters to the weights of their model, and write that");
  app.add_option("--base", flags.base,
                 "folder of the model that adapters are for; empty: the one that they name");
  app.add_option("--to", flags.to,
                 "folder to write; a model that is there is replaced, other files are not")
      ->required();
  app.add_option("--dtype", flags.dtype, "fp32, bf16, fp16, or keep: as in the source")
      ->check(CLI::IsMember({"keep", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--max-shard-size", flags.max_shard_bytes,
                 "largest file of weights, for example 500MB or 2GiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::PositiveNumber)
      ->default_str("5GB");
  return RunVerb(app, argc, argv, [&] { return Convert(flags); });
}

}  // namespace sparsebalance
