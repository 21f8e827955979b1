// A model as a folder that Hugging Face transformers reads and writes: config.json and
// model.safetensors, or several files of weights and model.safetensors.index.json. Tensors have the
// names of Qwen2ForCausalLM, which are those of model::ParameterStore.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"
#include "worker/model/parameters.h"
#include "worker/model_io/safetensors.h"
#include "worker/model_io/tensor_info.h"
#include "worker/model_io/tensor_source.h"

namespace sparsebalance::model_io {

inline constexpr char kWeightsFile[] = "model.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";

// The weights of a model on disk, mapped; tensors are read when asked for.
class HfWeights {
 public:
  // The folder's single file, or all files of its index. NOT_FOUND where it has neither, or where a
  // file or tensor of the index is missing; DATA_LOSS for a broken file or index; INVALID_ARGUMENT
  // for an index that names files outside the folder or leaves out tensors of its files.
  static absl::StatusOr<HfWeights> Open(const std::string& folder);
  // One file of any name.
  static absl::StatusOr<HfWeights> OpenFile(const std::string& path);

  // By file, then in the order of the data.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::string& where() const { return where_; }  // the folder, or the file

  struct Found {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };
  std::optional<Found> Find(const std::string& name) const;

  // Whether these are the parameters of such a model without adapters; values are not read.
  // NOT_FOUND naming a missing tensor; INVALID_ARGUMENT naming one with another shape (and both
  // shapes) or one that the model does not have; UNIMPLEMENTED naming one with a type that is not
  // read. Rotary inv_freq buffers are passed over; so is an output matrix beside tied embeddings,
  // and `warn` gets a line where it is not equal to the embedding.
  absl::Status CheckFits(const model::ModelConfig& config,
                         const std::function<void(const std::string&)>& warn) const;

  // values [elements].
  absl::Status Read(const std::string& name, std::span<float> values) const;

  // Reads all parameters of `store` but its adapters; gradients are left as they are.
  absl::Status Load(kernels::Backend* backend, model::ParameterStore* store) const;

 private:
  std::string where_;
  std::vector<SafetensorsFile> files_;
};

struct SaveOptions {
  // Of all tensors; nothing: each keeps the type that its source has.
  std::optional<ElementType> type;
  // Files of weights are cut at this size, and an index is written. A larger tensor has a file of
  // its own.
  uint64_t max_shard_bytes = 5'000'000'000;
  // Folder of a published model whose tokenizer and generation settings are copied; empty: none.
  std::string companions_from;
};

// From memory: parameters of a store. They and the backend outlive the source.
TensorSource SourceOf(kernels::Backend* backend, std::span<const model::Parameter> parameters);
// From disk: those tensors that a model of `config` has without adapters, in its order. The weights
// outlive the source. FAILED_PRECONDITION where one is missing (see HfWeights::CheckFits).
absl::StatusOr<TensorSource> SourceOf(const HfWeights& weights, const model::ModelConfig& config);

// Whether SaveModel may write there: it is not there yet, or it is a folder that holds nothing but
// files that SaveModel writes; of a tokenizer's, those that it would copy. INVALID_ARGUMENT naming
// what stands in the way.
absl::Status CheckSaveFolder(const std::string& folder, const std::string& companions_from = "");

// Writes the folder aside and puts it in place once it is whole, instead of a model that was there.
// RESOURCE_EXHAUSTED with the path where the disk is full; the old model is then untouched.
absl::Status SaveModel(const std::string& folder, const model::ModelConfig& config,
                       const TensorSource& source, const SaveOptions& options);

}  // namespace sparsebalance::model_io
