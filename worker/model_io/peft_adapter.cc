#include "worker/model_io/peft_adapter.h"

#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/data/file_io.h"
#include "worker/model_io/json_fields.h"
#include "worker/model_io/save_folder.h"

namespace sparsebalance::model_io {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLoraA = ".lora_A.weight";
constexpr std::string_view kLoraB = ".lora_B.weight";

absl::Status ReadTargets(const JsonFields& fields, model::ProjectionSet* targets) {
  const Json* modules = fields.Find("target_modules");
  if (modules == nullptr) return fields.Missing("target_modules");
  // PEFT takes a string as a pattern; lists are what it writes for the layers of one model.
  if (modules->is_string() && *modules == "all-linear") {
    targets->set();
    return absl::OkStatus();
  }
  if (!modules->is_array()) {
    return fields.Unsupported("target_modules", *modules, "a list of projections' names");
  }
  for (const Json& module : *modules) {
    const auto projection = module.is_string() ? model::ParseProjections(module.get<std::string>())
                                               : absl::InvalidArgumentError("not a name");
    if (!projection.ok() || projection->count() != 1) {
      return fields.Unsupported("target_modules", module,
                                "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
    }
    *targets |= *projection;
  }
  return absl::OkStatus();
}

// Features of PEFT that change what is computed or what the files hold. Each is off where it is
// missing, null, false, or an empty list or object.
absl::Status CheckOtherFeaturesOff(const JsonFields& fields) {
  for (const char* name :
       {"use_dora", "use_rslora", "fan_in_fan_out", "lora_bias", "modules_to_save", "rank_pattern",
        "alpha_pattern", "layers_to_transform", "layers_pattern", "layer_replication",
        "trainable_token_indices", "target_parameters", "exclude_modules", "use_qalora",
        "megatron_config"}) {
    const Json* value = fields.Find(name);
    if (value == nullptr || *value == false) continue;
    if ((value->is_array() || value->is_object() || value->is_string()) && value->empty()) continue;
    return fields.Unsupported(name, *value, "that it is off");
  }
  if (const Json* bias = fields.Find("bias"); bias != nullptr && *bias != "none") {
    return fields.Unsupported("bias", *bias, "\"none\"");
  }
  return absl::OkStatus();
}

// W += scale * B A, row by row.
void AddProduct(float scale, int64_t outputs, int64_t inputs, int64_t rank, const float* a,
                const float* b, float* w) {
  for (int64_t o = 0; o < outputs; ++o) {
    float* row = w + o * inputs;
    for (int64_t r = 0; r < rank; ++r) {
      const float factor = scale * b[o * rank + r];
      const float* from = a + r * inputs;
      for (int64_t i = 0; i < inputs; ++i) row[i] += factor * from[i];
    }
  }
}

bool IsAdapterFile(const std::string& name) {
  return name == kAdapterConfigFile || name == kAdapterWeightsFile;
}

}  // namespace

std::string FormatAdapterConfig(const AdapterConfig& config) {
  nlohmann::ordered_json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = nullptr;
  if (!config.base_model.empty()) json["base_model_name_or_path"] = config.base_model;
  json["r"] = config.lora.rank;
  const auto whole = static_cast<int64_t>(config.lora.alpha);
  if (static_cast<float>(whole) == config.lora.alpha) {
    json["lora_alpha"] = whole;  // as PEFT writes it
  } else {
    json["lora_alpha"] = config.lora.alpha;
  }
  json["lora_dropout"] = config.lora.dropout;
  json["target_modules"] = Json::array();
  for (size_t p = 0; p < model::kProjections; ++p) {
    if (config.lora.targets[p]) json["target_modules"].push_back(model::kProjectionNames[p]);
  }
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["modules_to_save"] = nullptr;
  json["use_dora"] = false;
  json["use_rslora"] = false;
  return json.dump(2) + "\n";
}

absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view text, const std::string& where) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(where, " is not a JSON object"));
  }
  const JsonFields fields(json, where);
  const Json* type = fields.Find("peft_type");
  if (type == nullptr) return fields.Missing("peft_type");
  if (*type != "LORA") return fields.Unsupported("peft_type", *type, "\"LORA\"");
  SB_RETURN_IF_ERROR(CheckOtherFeaturesOff(fields));
  AdapterConfig out;
  SB_RETURN_IF_ERROR(fields.Integer("r", true, &out.lora.rank));
  SB_RETURN_IF_ERROR(fields.Float("lora_alpha", true, &out.lora.alpha));
  if (const Json* dropout = fields.Find("lora_dropout"); dropout != nullptr && *dropout != 0) {
    SB_RETURN_IF_ERROR(fields.Float("lora_dropout", true, &out.lora.dropout));
  }
  SB_RETURN_IF_ERROR(ReadTargets(fields, &out.lora.targets));
  if (const Json* base = fields.Find("base_model_name_or_path"); base != nullptr) {
    if (!base->is_string()) return fields.Bad("base_model_name_or_path", *base, "a string");
    out.base_model = base->get<std::string>();
  }
  if (const absl::Status status = out.lora.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", status.message()));
  }
  return out;
}

absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kAdapterConfigFile);
  SB_ASSIGN_OR_RETURN(const data::MappedFile file, data::MappedFile::Open(path));
  return ParseAdapterConfig(
      {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

bool IsAdapterFolder(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(folder, "/", kAdapterConfigFile), error);
}

absl::StatusOr<std::string> BaseFolder(const std::string& adapters, const std::string& named,
                                       const std::string& given) {
  const std::string& folder = given.empty() ? named : given;
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return folder;
  if (!given.empty()) return absl::NotFoundError(absl::StrCat("there is no folder ", given));
  return absl::NotFoundError(absl::StrCat(
      adapters, " holds adapters of ", named.empty() ? "a model that it does not name" : named,
      named.empty() ? "" : ", which is no folder here", "; say where the model is with --base"));
}

absl::StatusOr<TensorSource> AdapterSourceOf(const HfWeights& file,
                                             const model::ModelConfig& config,
                                             std::string_view prefix_view) {
  const std::string prefix(prefix_view);
  TensorSource source;
  std::set<std::string> known;
  for (const model::ParameterShape& wanted : model::AdapterShapes(config)) {
    const std::string name = prefix + wanted.name;
    const auto found = file.Find(name);
    if (!found.has_value()) {
      return absl::NotFoundError(absl::StrCat(file.where(), " has no tensor ", name, ", of shape ",
                                              ShapeText(wanted.shape), " in this model"));
    }
    if (found->tensor->shape != wanted.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.where(), ": tensor ", name, " has shape ", ShapeText(found->tensor->shape),
          ", the adapters of this model need ", ShapeText(wanted.shape)));
    }
    if (!IsFloatType(found->tensor->type)) {
      return absl::UnimplementedError(absl::StrCat(
          file.where(), ": tensor ", name, " has type ",
          std::string(ElementTypeName(found->tensor->type)), "; F32, BF16 and F16 are read"));
    }
    known.insert(name);
    TensorInfo& tensor = source.tensors.emplace_back(*found->tensor);
    tensor.name = wanted.name;
  }
  for (const SafetensorsFile& part : file.files()) {
    for (const TensorInfo& tensor : part.tensors()) {
      if (known.contains(tensor.name)) continue;
      return absl::InvalidArgumentError(absl::StrCat(file.where(), ": tensor ", tensor.name,
                                                     " of shape ", ShapeText(tensor.shape),
                                                     " is not one of this model's adapters"));
    }
  }
  source.read = [&file, prefix](const TensorInfo& tensor, std::span<float> values) {
    return file.Read(prefix + tensor.name, values);
  };
  return source;
}

absl::Status LoadAdapters(const TensorSource& adapters, kernels::Backend* backend,
                          model::ParameterStore* store) {
  std::vector<float> values;
  for (const model::Parameter& parameter : store->adapter_parameters()) {
    values.resize(static_cast<size_t>(parameter.value.size()));
    SB_RETURN_IF_ERROR(adapters.read({.name = parameter.name, .shape = parameter.shape}, values));
    SB_RETURN_IF_ERROR(store->Write(parameter, values));
  }
  return absl::OkStatus();
}

TensorSource MergedSource(TensorSource base, TensorSource adapters, const model::LoraConfig& lora) {
  std::map<std::string, TensorInfo> by_name;
  for (const TensorInfo& tensor : adapters.tensors) by_name.emplace(tensor.name, tensor);
  TensorSource out;
  out.tensors = base.tensors;
  out.read = [base = std::move(base), adapters = std::move(adapters), by_name = std::move(by_name),
              scale = lora.Scale()](const TensorInfo& tensor, std::span<float> values) {
    SB_RETURN_IF_ERROR(base.read(tensor, values));
    constexpr std::string_view kWeight = ".weight";
    if (!tensor.name.ends_with(kWeight)) return absl::OkStatus();
    const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    const auto a = by_name.find(module + std::string(kLoraA));
    const auto b = by_name.find(module + std::string(kLoraB));
    if (a == by_name.end() || b == by_name.end()) return absl::OkStatus();
    const int64_t rank = a->second.shape[0];
    const int64_t inputs = a->second.shape[1];
    const int64_t outputs = b->second.shape[0];
    std::vector<float> a_values(static_cast<size_t>(rank * inputs));
    std::vector<float> b_values(static_cast<size_t>(outputs * rank));
    SB_RETURN_IF_ERROR(adapters.read(a->second, a_values));
    SB_RETURN_IF_ERROR(adapters.read(b->second, b_values));
    AddProduct(scale, outputs, inputs, rank, a_values.data(), b_values.data(), values.data());
    return absl::OkStatus();
  };
  return out;
}

absl::Status CheckAdapterFolder(const std::string& folder) {
  return CheckReplaceable(folder, IsAdapterFile, "an exported adapter");
}

absl::Status SaveAdapter(const std::string& folder, const AdapterConfig& config,
                         const TensorSource& adapters, std::optional<ElementType> type) {
  SB_RETURN_IF_ERROR(CheckAdapterFolder(folder));
  TensorSource named;
  named.tensors = InType(adapters.tensors, type);
  for (TensorInfo& tensor : named.tensors) tensor.name = kPeftPrefix + tensor.name;
  named.read = [&adapters](const TensorInfo& tensor, std::span<float> values) {
    TensorInfo ours = tensor;
    ours.name = tensor.name.substr(std::string_view(kPeftPrefix).size());
    return adapters.read(ours, values);
  };
  return ReplaceFolder(folder, [&](const std::string& aside) {
    SB_RETURN_IF_ERROR(
        WriteTensors(absl::StrCat(aside, "/", kAdapterWeightsFile), named.tensors, named));
    const std::string config_path = absl::StrCat(aside, "/", kAdapterConfigFile);
    SB_RETURN_IF_ERROR(WriteText(config_path, FormatAdapterConfig(config)));
    return data::SyncFolderOf(config_path);
  });
}

}  // namespace sparsebalance::model_io
