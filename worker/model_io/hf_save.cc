// Writing: SaveModel and its sources.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/data/file_io.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/hf_config.h"
#include "worker/model_io/save_folder.h"

namespace sparsebalance::model_io {
namespace {

// Consecutive tensors, as many as fit in a file each.
std::vector<std::vector<TensorInfo>> CutIntoShards(const std::vector<TensorInfo>& tensors,
                                                   uint64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> shards(1);
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    if (!shards.back().empty() && bytes + tensor.bytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(tensor);
  }
  return shards;
}

// What stands beside the weights of a published model and is needed to use it.
constexpr std::string_view kCompanions[] = {
    "tokenizer.json",     "tokenizer_config.json",   "vocab.json",
    "merges.txt",         "special_tokens_map.json", "added_tokens.json",
    "chat_template.json", "chat_template.jinja",     "generation_config.json"};

bool Exists(const std::string& folder, std::string_view name) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(folder, "/", std::string(name)), error);
}

absl::Status CopyCompanions(const std::string& from, const std::string& to) {
  for (const std::string_view name : kCompanions) {
    if (!Exists(from, name)) continue;
    SB_ASSIGN_OR_RETURN(const data::MappedFile file,
                        data::MappedFile::Open(absl::StrCat(from, "/", std::string(name))));
    SB_RETURN_IF_ERROR(WriteText(
        absl::StrCat(to, "/", std::string(name)),
        std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size())));
  }
  return absl::OkStatus();
}

absl::Status WriteFiles(const std::string& folder, const model::ModelConfig& config,
                        const std::vector<TensorInfo>& tensors, const TensorSource& source,
                        const SaveOptions& options) {
  const std::vector<std::vector<TensorInfo>> shards =
      CutIntoShards(tensors, options.max_shard_bytes);
  if (shards.size() == 1) {
    SB_RETURN_IF_ERROR(
        WriteTensors(absl::StrCat(folder, "/", kWeightsFile), shards.front(), source));
  } else {
    nlohmann::ordered_json index;
    uint64_t total = 0;
    for (const TensorInfo& tensor : tensors) total += tensor.bytes();
    index["metadata"]["total_size"] = total;
    for (size_t s = 0; s < shards.size(); ++s) {
      const std::string name =
          absl::StrFormat("model-%05d-of-%05d.safetensors", s + 1, shards.size());
      SB_RETURN_IF_ERROR(WriteTensors(absl::StrCat(folder, "/", name), shards[s], source));
      for (const TensorInfo& tensor : shards[s]) index["weight_map"][tensor.name] = name;
    }
    SB_RETURN_IF_ERROR(WriteText(absl::StrCat(folder, "/", kIndexFile), index.dump(2) + "\n"));
  }
  if (!options.companions_from.empty()) {
    SB_RETURN_IF_ERROR(CopyCompanions(options.companions_from, folder));
  }
  const ElementType type = tensors.empty() ? ElementType::kF32 : tensors.front().type;
  const std::string config_path = absl::StrCat(folder, "/", kConfigFile);
  SB_RETURN_IF_ERROR(WriteText(config_path, FormatHfConfig(config, type)));
  return data::SyncFolderOf(config_path);
}

bool IsModelFile(const std::string& name) {
  return name == kConfigFile || name == kIndexFile ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

}  // namespace

TensorSource SourceOf(kernels::Backend* backend, std::span<const model::Parameter> parameters) {
  TensorSource source;
  for (const model::Parameter& parameter : parameters) {
    source.tensors.push_back({.name = parameter.name, .shape = parameter.shape});
  }
  source.read = [backend, parameters](const TensorInfo& tensor, std::span<float> values) {
    for (const model::Parameter& parameter : parameters) {
      if (parameter.name != tensor.name) continue;
      return backend->CopyToHost(kernels::ConstDeviceBuffer(parameter.value), values.data());
    }
    return absl::NotFoundError(absl::StrCat("the model has no parameter ", tensor.name));
  };
  return source;
}

absl::StatusOr<TensorSource> SourceOf(const HfWeights& weights, const model::ModelConfig& config) {
  TensorSource source;
  for (const model::ParameterShape& parameter : model::BaseShapes(config)) {
    const auto found = weights.Find(parameter.name);
    if (!found.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the weights have no tensor ", parameter.name));
    }
    source.tensors.push_back(*found->tensor);
  }
  source.read = [&weights](const TensorInfo& tensor, std::span<float> values) {
    return weights.Read(tensor.name, values);
  };
  return source;
}

absl::Status CheckSaveFolder(const std::string& folder, const std::string& companions_from) {
  const auto is_ours = [&](const std::string& name) {
    return IsModelFile(name) || (!companions_from.empty() && Exists(companions_from, name) &&
                                 std::find(std::begin(kCompanions), std::end(kCompanions), name) !=
                                     std::end(kCompanions));
  };
  return CheckReplaceable(folder, is_ours, "an exported model");
}

absl::Status SaveModel(const std::string& folder, const model::ModelConfig& config,
                       const TensorSource& source, const SaveOptions& options) {
  SB_RETURN_IF_ERROR(CheckSaveFolder(folder, options.companions_from));
  const std::vector<TensorInfo> tensors = InType(source.tensors, options.type);
  return ReplaceFolder(folder, [&](const std::string& partial) {
    return WriteFiles(partial, config, tensors, source, options);
  });
}

}  // namespace sparsebalance::model_io
