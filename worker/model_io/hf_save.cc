// Writing: SaveModel and its sources.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/hf_config.h"

namespace sparsebalance::model_io {
namespace {

namespace fs = std::filesystem;

// Tells readers how tensors are laid out; transformers refuses files without it.
const std::map<std::string, std::string>& Metadata() {
  static const auto* const metadata = new std::map<std::string, std::string>{{"format", "pt"}};
  return *metadata;
}

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

absl::Status WriteText(const std::string& path, const std::string& text) {
  SB_ASSIGN_OR_RETURN(data::PendingFile file, data::PendingFile::Create(path));
  SB_RETURN_IF_ERROR(file.Write(text));
  SB_RETURN_IF_ERROR(file.Sync());
  return file.Publish();
}

absl::Status WriteShard(const std::string& path, const std::vector<TensorInfo>& tensors,
                        const TensorSource& source) {
  SB_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::Create(path, tensors, Metadata()));
  std::vector<float> values;
  for (const TensorInfo& tensor : tensors) {
    values.resize(tensor.elements());
    SB_RETURN_IF_ERROR(source.read(tensor, values));
    SB_RETURN_IF_ERROR(writer.Add(values));
  }
  return writer.Finish();
}

absl::Status WriteFiles(const std::string& folder, const model::ModelConfig& config,
                        const std::vector<TensorInfo>& tensors, const TensorSource& source,
                        uint64_t max_shard_bytes) {
  const std::vector<std::vector<TensorInfo>> shards = CutIntoShards(tensors, max_shard_bytes);
  if (shards.size() == 1) {
    SB_RETURN_IF_ERROR(WriteShard(absl::StrCat(folder, "/", kWeightsFile), shards.front(), source));
  } else {
    nlohmann::ordered_json index;
    uint64_t total = 0;
    for (const TensorInfo& tensor : tensors) total += tensor.bytes();
    index["metadata"]["total_size"] = total;
    for (size_t s = 0; s < shards.size(); ++s) {
      const std::string name =
          absl::StrFormat("model-%05d-of-%05d.safetensors", s + 1, shards.size());
      SB_RETURN_IF_ERROR(WriteShard(absl::StrCat(folder, "/", name), shards[s], source));
      for (const TensorInfo& tensor : shards[s]) index["weight_map"][tensor.name] = name;
    }
    SB_RETURN_IF_ERROR(WriteText(absl::StrCat(folder, "/", kIndexFile), index.dump(2) + "\n"));
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

absl::Status FolderError(const std::string& path, const char* doing, const std::error_code& error) {
  return data::SystemError(error.value(), path, doing);
}

// Puts `whole` in the place of `folder`. Where the folder is there, there is a moment in which it
// is under another name; a crash then leaves it as FOLDER.old.<pid>.
absl::Status PutInPlace(const std::string& whole, const std::string& folder) {
  std::error_code error;
  const std::string old = absl::StrCat(folder, ".old.", getpid());
  const bool replaces = fs::exists(folder, error);
  if (replaces) fs::rename(folder, old, error);
  if (error) return FolderError(folder, "cannot move aside", error);
  fs::rename(whole, folder, error);
  if (error) {
    const std::error_code reason = error;
    if (replaces) fs::rename(old, folder, error);
    return FolderError(folder, "cannot rename to it", reason);
  }
  if (replaces) fs::remove_all(old, error);
  return data::SyncFolderOf(folder);
}

}  // namespace

TensorSource SourceOf(kernels::Backend* backend, const model::ParameterStore& store) {
  TensorSource source;
  for (const model::Parameter& parameter : store.parameters()) {
    source.tensors.push_back({.name = parameter.name, .shape = parameter.shape});
  }
  source.read = [backend, &store](const TensorInfo& tensor, std::span<float> values) {
    for (const model::Parameter& parameter : store.parameters()) {
      if (parameter.name != tensor.name) continue;
      return backend->CopyToHost(kernels::ConstDeviceBuffer(parameter.value), values.data());
    }
    return absl::NotFoundError(absl::StrCat("the model has no parameter ", tensor.name));
  };
  return source;
}

absl::StatusOr<TensorSource> SourceOf(const HfWeights& weights, const model::ModelConfig& config) {
  TensorSource source;
  for (const model::ParameterShape& parameter : model::ParameterShapes(config)) {
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

absl::Status CheckSaveFolder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return absl::OkStatus();
  if (!fs::is_directory(folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " is there and is not a folder"));
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!IsModelFile(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, " holds ", name,
                       ", which is not part of an exported model; name another folder"));
    }
  }
  if (error) return FolderError(folder, "cannot list", error);
  return absl::OkStatus();
}

absl::Status SaveModel(const std::string& given, const model::ModelConfig& config,
                       const TensorSource& source, const SaveOptions& options) {
  // Without a slash at its end, so that names beside it can be made from it.
  std::string folder = given;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  SB_RETURN_IF_ERROR(CheckSaveFolder(folder));
  std::vector<TensorInfo> tensors = source.tensors;
  for (TensorInfo& tensor : tensors) {
    tensor.type = options.type.value_or(tensor.type);
    tensor.begin = 0;
    tensor.end = TensorBytes(tensor.type, tensor.shape).value_or(0);
  }
  const std::string partial = absl::StrCat(folder, ".partial.", getpid());
  std::error_code error;
  fs::remove_all(partial, error);
  fs::create_directories(partial, error);
  if (error) return FolderError(partial, "cannot create", error);
  absl::Status status = WriteFiles(partial, config, tensors, source, options.max_shard_bytes);
  if (status.ok()) status = PutInPlace(partial, folder);
  if (!status.ok()) fs::remove_all(partial, error);
  return status;
}

}  // namespace sparsebalance::model_io
