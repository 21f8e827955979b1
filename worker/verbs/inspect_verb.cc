#include "worker/verbs/inspect_verb.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/model_io/hf_config.h"
#include "worker/verbs/model_on_disk.h"
#include "worker/verbs/verb_main.h"

namespace sparsebalance {
namespace {

using model_io::TensorInfo;
using Json = nlohmann::ordered_json;

struct Row {
  const TensorInfo* tensor;
  std::string file;
};

struct Totals {
  std::vector<Row> rows;
  std::map<std::string, uint64_t> tensors_by_type;
  uint64_t parameters = 0, bytes = 0;
};

Totals Count(const model_io::HfWeights& weights) {
  Totals out;
  for (const model_io::SafetensorsFile& file : weights.files()) {
    const std::string name = std::filesystem::path(file.path()).filename().string();
    for (const TensorInfo& tensor : file.tensors()) {
      out.rows.push_back({&tensor, name});
      out.tensors_by_type[std::string(model_io::ElementTypeName(tensor.type))] += 1;
      out.parameters += tensor.elements();
      out.bytes += tensor.bytes();
    }
  }
  return out;
}

// Why training could not start from it; empty where it could.
std::string Problem(const ModelOnDisk& model) {
  if (model.form == ModelForm::kFile) return "";
  if (!model.config.ok()) return std::string(model.config.status().message());
  if (model.adapter.has_value()) return std::string(AdaptersOf(model).status().message());
  const absl::Status status = model.weights.CheckFits(*model.config, [](const std::string&) {});
  return std::string(status.message());
}

Json AsJson(const ModelOnDisk& model, const Totals& totals) {
  Json json;
  json["path"] = model.path;
  json["form"] = ModelFormName(model.form);
  if (model.config.ok()) {
    json["config"] = Json::parse(model_io::FormatHfConfig(
        *model.config,
        totals.rows.empty() ? model_io::ElementType::kF32 : totals.rows.front().tensor->type));
  }
  if (model.adapter.has_value()) {
    json["adapter"] =
        Json::parse(model_io::FormatAdapterConfig(*model.adapter), nullptr, /*exceptions=*/false);
  }
  if (model.manifest.has_value()) json["next_step"] = model.manifest->position.next_step;
  if (const std::string problem = Problem(model); !problem.empty()) json["problem"] = problem;
  json["parameters"] = totals.parameters;
  json["bytes"] = totals.bytes;
  json["tensors_by_dtype"] = totals.tensors_by_type;
  json["tensors"] = Json::array();
  for (const Row& row : totals.rows) {
    json["tensors"].push_back({{"name", row.tensor->name},
                               {"dtype", model_io::ElementTypeName(row.tensor->type)},
                               {"shape", row.tensor->shape},
                               {"bytes", row.tensor->bytes()},
                               {"file", row.file}});
  }
  return json;
}

void AppendConfig(const model::ModelConfig& c, std::string& out) {
  absl::StrAppendFormat(&out, "architecture  Qwen2ForCausalLM\n");
  absl::StrAppendFormat(
      &out, "shape         %d layers, hidden %d, %d heads of %d over %d key-value heads, MLP %d\n",
      c.num_layers, c.hidden_size, c.num_heads, c.HeadDim(), c.num_kv_heads, c.intermediate_size);
  absl::StrAppendFormat(&out, "vocabulary    %d, embeddings %s\n", c.vocab_size,
                        c.tie_embeddings ? "tied" : "not tied");
  absl::StrAppendFormat(&out, "rotary        theta %g\n", c.rope_theta);
  absl::StrAppendFormat(&out, "RMSNorm       epsilon %g\n", c.rms_norm_eps);
  absl::StrAppendFormat(&out, "attention     blocks of %d tokens\n", c.block_tokens);
}

std::string AsTable(const ModelOnDisk& model, const Totals& totals) {
  std::string out;
  absl::StrAppendFormat(&out, "%s, a %s\n", model.path, std::string(ModelFormName(model.form)));
  if (model.config.ok()) AppendConfig(*model.config, out);
  if (model.adapter.has_value()) {
    const model::LoraConfig& lora = model.adapter->lora;
    absl::StrAppendFormat(&out, "adapters      rank %d, alpha %g, on %s\n", lora.rank, lora.alpha,
                          model::ProjectionsText(lora.targets));
    absl::StrAppendFormat(
        &out, "base model    %s\n",
        model.adapter->base_model.empty() ? "not named" : model.adapter->base_model);
  }
  if (model.manifest.has_value()) {
    absl::StrAppendFormat(&out, "next step     %d\n", model.manifest->position.next_step);
  }
  std::string types;
  for (const auto& [type, count] : totals.tensors_by_type) {
    absl::StrAppend(&types, types.empty() ? "" : ", ", count, " ", type);
  }
  absl::StrAppendFormat(&out, "parameters    %d in %d tensors (%s), %d bytes in %d %s\n",
                        totals.parameters, totals.rows.size(), types, totals.bytes,
                        model.weights.files().size(),
                        model.weights.files().size() == 1 ? "file" : "files");
  if (const std::string problem = Problem(model); !problem.empty()) {
    absl::StrAppendFormat(&out, "problem       %s\n", problem);
  }
  size_t name_width = 6;
  size_t shape_width = 5;
  for (const Row& row : totals.rows) {
    name_width = std::max(name_width, row.tensor->name.size());
    shape_width = std::max(shape_width, model_io::ShapeText(row.tensor->shape).size());
  }
  const bool several = model.weights.files().size() > 1;
  absl::StrAppendFormat(&out, "\n%-*s  %-7s  %-*s  %12s%s\n", static_cast<int>(name_width),
                        "tensor", "dtype", static_cast<int>(shape_width), "shape", "bytes",
                        several ? "  file" : "");
  for (const Row& row : totals.rows) {
    absl::StrAppendFormat(&out, "%-*s  %-7s  %-*s  %12d%s%s\n", static_cast<int>(name_width),
                          row.tensor->name, std::string(ElementTypeName(row.tensor->type)),
                          static_cast<int>(shape_width), model_io::ShapeText(row.tensor->shape),
                          row.tensor->bytes(), several ? "  " : "", several ? row.file : "");
  }
  return out;
}

absl::Status Inspect(const std::string& path, bool json) {
  SB_ASSIGN_OR_RETURN(const ModelOnDisk model, OpenModelOnDisk(path));
  const Totals totals = Count(model.weights);
  if (json) {
    std::cout << AsJson(model, totals).dump(2, ' ', false, Json::error_handler_t::replace)
              << std::endl;
  } else {
    std::cout << AsTable(model, totals) << std::flush;
  }
  return absl::OkStatus();
}

}  // namespace

int RunInspectVerb(int argc, char** argv) {
  CLI::App app("Shows what a model on disk consists of, without reading its values.",
               "sparsebalance-worker inspect");
  std::string path;
  bool json = false;
  app.add_option("path", path,
                 "folder of a Hugging Face model or PEFT adapter, checkpoint folder "
                 "(DIR/step-XXXXXXXX) or safetensors file")
      ->required();
  app.add_flag("--json", json, "as JSON instead of a table");
  return RunVerb(app, argc, argv, [&] { return Inspect(path, json); });
}

}  // namespace sparsebalance
