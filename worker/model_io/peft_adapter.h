// Low-rank adapters as a folder that PEFT (the Hugging Face library) reads and writes:
// adapter_config.json and adapter_model.safetensors. The model that they belong to is a folder of
// its own (hf_checkpoint.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"
#include "worker/model/parameters.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/tensor_info.h"
#include "worker/model_io/tensor_source.h"

namespace sparsebalance::model_io {

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";
// PEFT's names are those of the model's modules after this.
inline constexpr char kPeftPrefix[] = "base_model.model.";

struct AdapterConfig {
  model::LoraConfig lora;
  std::string base_model;  // folder (or hub name) of the model; may be empty
};

std::string FormatAdapterConfig(const AdapterConfig& config);
// `where` begins messages. DATA_LOSS for what is no JSON object; INVALID_ARGUMENT for what is
// missing or of a wrong kind; UNIMPLEMENTED naming another kind of adapter or a feature that would
// change what is computed.
absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view json, const std::string& where);
absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& folder);
bool IsAdapterFolder(const std::string& folder);
// The folder of the model that adapters in `adapters` are for: `given`, else the one that they
// name. NOT_FOUND where that is no folder, with what to do.
absl::StatusOr<std::string> BaseFolder(const std::string& adapters, const std::string& named,
                                       const std::string& given);

// Adapters of a model of `config` in a file, where their names begin with `prefix`: the source has
// the model's own names. NOT_FOUND naming a missing tensor; INVALID_ARGUMENT naming one with
// another shape (and both) or one that the config does not have; UNIMPLEMENTED naming one with a
// type that is not read. The file outlives the source.
absl::StatusOr<TensorSource> AdapterSourceOf(const HfWeights& file,
                                             const model::ModelConfig& config,
                                             std::string_view prefix);

// Reads them into the adapters of `store`.
absl::Status LoadAdapters(const TensorSource& adapters, kernels::Backend* backend,
                          model::ParameterStore* store);

// The model with its adapters' products added to the weights, rounded where it is written only:
// what to serve without PEFT. Takes the base in its own names.
TensorSource MergedSource(TensorSource base, TensorSource adapters, const model::LoraConfig& lora);

// As CheckSaveFolder and SaveModel. `adapters` has the model's names; without a type each tensor
// keeps that of its source.
absl::Status CheckAdapterFolder(const std::string& folder);
absl::Status SaveAdapter(const std::string& folder, const AdapterConfig& config,
                         const TensorSource& adapters, std::optional<ElementType> type);

}  // namespace sparsebalance::model_io
