#include "worker/model_io/hf_config.h"

#include <array>
#include <charconv>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/data/file_io.h"
#include "worker/model_io/json_fields.h"

namespace sparsebalance::model_io {
namespace {

using Json = nlohmann::json;

constexpr char kArchitecture[] = "Qwen2ForCausalLM";
constexpr char kModelType[] = "qwen2";

absl::Status CheckArchitecture(const JsonFields& fields) {
  const Json* architectures = fields.Find("architectures");
  const Json* type = fields.Find("model_type");
  if (architectures == nullptr && type == nullptr) return fields.Missing("architectures");
  if (architectures != nullptr && *architectures != Json::array({kArchitecture})) {
    return fields.Unsupported("architectures", *architectures, "[\"Qwen2ForCausalLM\"]");
  }
  if (type != nullptr && *type != kModelType) {
    return fields.Unsupported("model_type", *type, "\"qwen2\"");
  }
  return absl::OkStatus();
}

// transformers writes rotary settings in one of two forms: rope_theta beside a rope_scaling that is
// null unless positions are scaled, or (since its version 5) both in rope_parameters.
absl::Status ReadRope(const JsonFields& fields, const std::string& source, float* theta) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* value = fields.Find(name);
    if (value == nullptr) continue;
    if (!value->is_object()) return fields.Bad(name, *value, "an object");
    const JsonFields inner(*value, absl::StrCat(source, ": ", name));
    for (const char* kind : {"rope_type", "type"}) {
      const Json* type = inner.Find(kind);
      if (type != nullptr && *type != "default") {
        return fields.Unsupported(name, *value, "null, or type \"default\"");
      }
    }
    if (inner.Find("factor") != nullptr) {
      return fields.Unsupported(name, *value, "null, or type \"default\" without a factor");
    }
    if (fields.Find("rope_theta") == nullptr && inner.Find("rope_theta") != nullptr) {
      return inner.Float("rope_theta", true, theta);
    }
  }
  return fields.Float("rope_theta", true, theta);
}

// Settings that change what a model computes and that this code has one value for.
absl::Status CheckUnsupported(const JsonFields& fields) {
  bool sliding = false;
  SB_RETURN_IF_ERROR(fields.Bool("use_sliding_window", false, &sliding));
  if (sliding) {
    return fields.Unsupported("use_sliding_window", true, "false");
  }
  if (const Json* act = fields.Find("hidden_act"); act != nullptr && *act != "silu") {
    return fields.Unsupported("hidden_act", *act, "\"silu\"");
  }
  if (const Json* dropout = fields.Find("attention_dropout");
      dropout != nullptr && (!dropout->is_number() || dropout->get<double>() != 0)) {
    return fields.Unsupported("attention_dropout", *dropout, "0");
  }
  if (const Json* quantized = fields.Find("quantization_config"); quantized != nullptr) {
    return fields.Unsupported("quantization_config", *quantized,
                              "none: weights in F32, BF16 or F16");
  }
  for (const char* name : {"attention_bias", "qkv_bias"}) {
    if (const Json* bias = fields.Find(name); bias != nullptr && *bias != true) {
      return fields.Unsupported(name, *bias, "true: q, k and v have biases");
    }
  }
  if (const Json* layers = fields.Find("layer_types"); layers != nullptr) {
    if (!layers->is_array()) return fields.Bad("layer_types", *layers, "a list");
    for (const Json& layer : *layers) {
      if (layer != "full_attention") {
        return fields.Unsupported("layer_types", layer, "\"full_attention\" in every layer");
      }
    }
  }
  return absl::OkStatus();
}

// The double of fewest digits that is this float: 1e-06 instead of 9.999999974752427e-07.
double Shortest(float value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double out = value;
  std::from_chars(text.data(), end, out);
  return out;
}

const char* TorchType(ElementType type) {
  switch (type) {
    case ElementType::kBF16:
      return "bfloat16";
    case ElementType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace

absl::StatusOr<model::ModelConfig> ParseHfConfig(std::string_view text, std::string_view source) {
  const std::string from(source);
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(from, " is not a JSON object"));
  const JsonFields fields(json, from);
  SB_RETURN_IF_ERROR(CheckArchitecture(fields));
  SB_RETURN_IF_ERROR(CheckUnsupported(fields));
  model::ModelConfig config;
  config.head_dim = 0;
  for (const auto& [name, field] :
       {std::pair("vocab_size", &config.vocab_size), std::pair("hidden_size", &config.hidden_size),
        std::pair("num_hidden_layers", &config.num_layers),
        std::pair("num_attention_heads", &config.num_heads),
        std::pair("num_key_value_heads", &config.num_kv_heads),
        std::pair("intermediate_size", &config.intermediate_size)}) {
    SB_RETURN_IF_ERROR(fields.Integer(name, true, field));
  }
  SB_RETURN_IF_ERROR(fields.Integer("head_dim", false, &config.head_dim));
  SB_RETURN_IF_ERROR(
      fields.Integer("max_position_embeddings", false, &config.max_position_embeddings));
  SB_RETURN_IF_ERROR(ReadRope(fields, from, &config.rope_theta));
  SB_RETURN_IF_ERROR(fields.Float("rms_norm_eps", true, &config.rms_norm_eps));
  SB_RETURN_IF_ERROR(fields.Float("initializer_range", false, &config.initializer_range));
  SB_RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", true, &config.tie_embeddings));
  if (const Json* ours = fields.Find("sparsebalance"); ours != nullptr) {
    if (!ours->is_object()) return fields.Bad("sparsebalance", *ours, "an object");
    const JsonFields extras(*ours, absl::StrCat(from, ": sparsebalance"));
    SB_RETURN_IF_ERROR(extras.Integer("block_tokens", false, &config.block_tokens));
    SB_RETURN_IF_ERROR(
        extras.Integer("coverage_sample_stride", false, &config.coverage_sample_stride));
  }
  if (absl::Status status = config.Validate(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(from, ": ", status.message()));
  }
  config.head_dim = config.HeadDim();
  return config;
}

absl::StatusOr<model::ModelConfig> ReadHfConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kConfigFile);
  SB_ASSIGN_OR_RETURN(const data::MappedFile file, data::MappedFile::Open(path));
  return ParseHfConfig({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                       path);
}

std::string FormatHfConfig(const model::ModelConfig& config, ElementType type) {
  nlohmann::ordered_json json;
  json["architectures"] = {kArchitecture};
  json["model_type"] = kModelType;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.HeadDim();
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rope_theta"] = Shortest(config.rope_theta);
  json["rope_scaling"] = nullptr;
  json["rms_norm_eps"] = Shortest(config.rms_norm_eps);
  json["initializer_range"] = Shortest(config.initializer_range);
  json["attention_dropout"] = 0.0;
  json["use_sliding_window"] = false;
  json["tie_word_embeddings"] = config.tie_embeddings;
  json["torch_dtype"] = TorchType(type);
  json["sparsebalance"] = {{"block_tokens", config.block_tokens},
                           {"coverage_sample_stride", config.coverage_sample_stride}};
  return json.dump(2) + "\n";
}

}  // namespace sparsebalance::model_io
