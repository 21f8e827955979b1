// config.json of Hugging Face transformers, for models of the Qwen2 family (Qwen2, Qwen2.5).
//
// What decides the computation must be stated and be something that this code computes: anything
// else is refused by name, never ignored. Our own settings stand in an object `sparsebalance`,
// which transformers keeps and does not read; models of others have none and get the defaults.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/model/config.h"
#include "worker/model_io/tensor_info.h"

namespace sparsebalance::model_io {

inline constexpr char kConfigFile[] = "config.json";

// `source` names the text in messages. DATA_LOSS where it is not JSON; INVALID_ARGUMENT naming a
// field that is missing or has a bad value; UNIMPLEMENTED naming field and value for a model that
// this code does not compute (another architecture, sliding windows, scaled rotary embeddings,
// ...).
absl::StatusOr<model::ModelConfig> ParseHfConfig(std::string_view text, std::string_view source);

// config.json of the folder. NOT_FOUND where there is none.
absl::StatusOr<model::ModelConfig> ReadHfConfig(const std::string& folder);

// `type` is that of the parameters on disk, F32, BF16 or F16.
std::string FormatHfConfig(const model::ModelConfig& config, ElementType type);

}  // namespace sparsebalance::model_io
