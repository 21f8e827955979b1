// Reading: class HfWeights.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/model_io/hf_checkpoint.h"

namespace sparsebalance::model_io {
namespace {

using Json = nlohmann::json;

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kOutput[] = "lm_head.weight";

// Old versions of transformers saved the frequencies of the rotary embedding, which follow from
// rope_theta.
bool IsRotaryBuffer(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

// Tensor to file, as the index says.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  SB_ASSIGN_OR_RETURN(const data::MappedFile file, data::MappedFile::Open(path));
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  const Json json = Json::parse(text, text + file.bytes().size(), nullptr, false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    return absl::DataLossError(absl::StrCat(path, " has no weight_map"));
  }
  std::map<std::string, std::string> out;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      return absl::DataLossError(absl::StrCat(path, ": the file of tensor ", tensor, " is ",
                                              shard.dump(), ", must be a name"));
    }
    const auto name = shard.get<std::string>();
    // Only files of the folder itself: an index must not make us read others.
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the file of tensor ", tensor, " is '",
                                                     name,
                                                     "', which is not a name in the same folder"));
    }
    out.emplace(tensor, name);
  }
  return out;
}

bool SameBytes(const HfWeights::Found& a, const HfWeights::Found& b) {
  const auto x = a.file->Bytes(*a.tensor);
  const auto y = b.file->Bytes(*b.tensor);
  return a.tensor->type == b.tensor->type && std::equal(x.begin(), x.end(), y.begin(), y.end());
}

}  // namespace

absl::StatusOr<HfWeights> HfWeights::OpenFile(const std::string& path) {
  HfWeights out;
  out.where_ = path;
  SB_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  out.files_.push_back(std::move(file));
  return out;
}

absl::StatusOr<HfWeights> HfWeights::Open(const std::string& folder) {
  const std::string single = absl::StrCat(folder, "/", kWeightsFile);
  const std::string index_path = absl::StrCat(folder, "/", kIndexFile);
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    SB_ASSIGN_OR_RETURN(HfWeights out, OpenFile(single));
    out.where_ = folder;
    return out;
  }
  if (!std::filesystem::exists(index_path, error)) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has neither ", kWeightsFile, " nor ", kIndexFile));
  }
  using Index = std::map<std::string, std::string>;
  SB_ASSIGN_OR_RETURN(const Index index, ReadIndex(index_path));
  HfWeights out;
  out.where_ = folder;
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  for (const std::string& shard : shards) {
    SB_ASSIGN_OR_RETURN(SafetensorsFile file,
                        SafetensorsFile::Open(absl::StrCat(folder, "/", shard)));
    for (const TensorInfo& tensor : file.tensors()) {
      const auto listed = index.find(tensor.name);
      if (listed == index.end() || listed->second != shard) {
        return absl::InvalidArgumentError(absl::StrCat(file.path(), " has the tensor ", tensor.name,
                                                       ", which ", kIndexFile,
                                                       " does not place there"));
      }
    }
    out.files_.push_back(std::move(file));
  }
  for (const auto& [tensor, shard] : index) {
    if (!out.Find(tensor).has_value()) {
      return absl::NotFoundError(absl::StrCat(folder, "/", shard, " has no tensor ", tensor,
                                              ", though ", kIndexFile, " places it there"));
    }
  }
  return out;
}

std::optional<HfWeights::Found> HfWeights::Find(const std::string& name) const {
  for (const SafetensorsFile& file : files_) {
    if (const TensorInfo* tensor = file.Find(name); tensor != nullptr) return Found{&file, tensor};
  }
  return std::nullopt;
}

absl::Status HfWeights::CheckFits(const model::ModelConfig& config,
                                  const std::function<void(const std::string&)>& warn) const {
  std::set<std::string> known;
  for (const model::ParameterShape& wanted : model::BaseShapes(config)) {
    const std::optional<Found> found = Find(wanted.name);
    if (!found.has_value()) {
      return absl::NotFoundError(absl::StrCat(where_, " has no tensor ", wanted.name, ", of shape ",
                                              ShapeText(wanted.shape), " in this model"));
    }
    const TensorInfo& tensor = *found->tensor;
    if (tensor.shape != wanted.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(found->file->path(), ": tensor ", wanted.name, " has shape ",
                       ShapeText(tensor.shape), ", the model needs ", ShapeText(wanted.shape)));
    }
    if (!IsFloatType(tensor.type)) {
      return absl::UnimplementedError(
          absl::StrCat(found->file->path(), ": tensor ", tensor.name, " has type ",
                       std::string(ElementTypeName(tensor.type)), "; F32, BF16 and F16 are read"));
    }
    known.insert(wanted.name);
  }
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& tensor : file.tensors()) {
      if (known.contains(tensor.name) || IsRotaryBuffer(tensor.name)) continue;
      if (tensor.name == kOutput && config.tie_embeddings) {
        if (!SameBytes({&file, &tensor}, *Find(kEmbedding))) {
          warn(absl::StrCat(file.path(), ": ", kOutput,
                            " is ignored: tie_word_embeddings is true, ", "and it is not equal to ",
                            kEmbedding));
        }
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", tensor.name,
                                                     " of shape ", ShapeText(tensor.shape),
                                                     " is not part of this model"));
    }
  }
  return absl::OkStatus();
}

absl::Status HfWeights::Read(const std::string& name, std::span<float> values) const {
  const std::optional<Found> found = Find(name);
  if (!found.has_value()) {
    return absl::NotFoundError(absl::StrCat(where_, " has no tensor ", name));
  }
  return found->file->Read(*found->tensor, values);
}

absl::Status HfWeights::Load(kernels::Backend* backend, model::ParameterStore* store) const {
  std::vector<float> values;
  for (const model::Parameter& parameter : store->base_parameters()) {
    values.resize(static_cast<size_t>(parameter.value.size()));
    SB_RETURN_IF_ERROR(Read(parameter.name, values));
    SB_RETURN_IF_ERROR(store->Write(parameter, values));
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::model_io
