#include "worker/verbs/convert_verb.h"

#include <cstdint>
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/data/digest.h"
#include "worker/data/file_io.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/verbs/model_on_disk.h"
#include "worker/verbs/verb_main.h"

namespace sparsebalance {
namespace {

struct ConvertFlags {
  std::string from, to;
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

absl::Status Convert(const ConvertFlags& flags) {
  model_io::SaveOptions options;
  options.max_shard_bytes = flags.max_shard_bytes;
  if (flags.dtype != "keep") {
    SB_ASSIGN_OR_RETURN(options.type, model_io::ElementTypeFromFlag(flags.dtype));
  }
  SB_RETURN_IF_ERROR(model_io::CheckSaveFolder(flags.to));
  SB_ASSIGN_OR_RETURN(const ModelOnDisk from, OpenModelOnDisk(flags.from));
  if (from.form == ModelForm::kFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.from, " is a file: --from takes a Hugging Face folder or a checkpoint"));
  }
  if (!from.config.ok()) return from.config.status();
  if (from.manifest.has_value()) SB_RETURN_IF_ERROR(CheckChecksum(*from.manifest, flags.from));
  SB_RETURN_IF_ERROR(from.weights.CheckFits(*from.config, [](const std::string& warning) {
    std::cerr << "convert: " << warning << "\n";
  }));
  SB_ASSIGN_OR_RETURN(const model_io::TensorSource source,
                      model_io::SourceOf(from.weights, *from.config));
  SB_RETURN_IF_ERROR(model_io::SaveModel(flags.to, *from.config, source, options));

  SB_ASSIGN_OR_RETURN(const model_io::HfWeights written, model_io::HfWeights::Open(flags.to));
  uint64_t tensors = 0, parameters = 0, bytes = 0;
  for (const model_io::SafetensorsFile& file : written.files()) {
    for (const model_io::TensorInfo& tensor : file.tensors()) {
      tensors += 1;
      parameters += tensor.elements();
    }
    bytes += file.file_bytes();
  }
  std::cout << "wrote " << flags.to << ": " << tensors << " tensors, " << parameters
            << " parameters, " << bytes << " bytes in " << written.files().size()
            << (written.files().size() == 1 ? " file" : " files") << std::endl;
  return absl::OkStatus();
}

}  // namespace

int RunConvertVerb(int argc, char** argv) {
  CLI::App app("Writes a model as a folder that Hugging Face transformers reads.",
               "sparsebalance-worker convert");
  ConvertFlags flags;
  app.add_option("--from", flags.from,
                 "checkpoint folder (DIR/step-XXXXXXXX) or Hugging Face folder")
      ->required();
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
