#include "worker/train/checkpoint_manifest.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/model_io/hf_config.h"
#include "worker/train/file_util.h"

namespace sparsebalance {
namespace {

constexpr int kFormat = 1;
// With carried sequences: a version that does not know them would train some of them twice.
constexpr int kFormatCarried = 2;
// Adapters alone: a version that does not know them would look for the whole model.
constexpr int kFormatAdapters = 3;

int FormatOf(const TrainPosition& position) {
  if (position.model.has_value() && position.model->lora.enabled()) return kFormatAdapters;
  return position.carried.empty() ? kFormat : kFormatCarried;
}

absl::Status ReadAdapters(const nlohmann::json& json, TrainPosition& position) {
  model::LoraConfig& lora = position.model->lora;
  lora.rank = json.at("rank").get<int>();
  lora.alpha = json.at("alpha").get<float>();
  lora.dropout = json.at("dropout").get<float>();
  SB_ASSIGN_OR_RETURN(lora.targets, model::ParseProjections(json.at("targets").get<std::string>()));
  position.base_model = json.at("base_model").get<std::string>();
  position.base_fingerprint =
      std::stoull(json.at("base_fingerprint").get<std::string>(), nullptr, 16);
  return lora.Validate();
}

}  // namespace

std::string FormatManifest(const CheckpointManifest& manifest) {
  const TrainPosition& position = manifest.position;
  nlohmann::ordered_json json;
  json["format"] = FormatOf(position);
  json["next_step"] = position.next_step;
  json["epoch"] = position.epoch;
  json["offset"] = position.offset;
  json["optimizer_steps"] = position.optimizer_steps;
  json["seed"] = position.seed;
  json["dataset_fingerprint"] = absl::StrFormat("%016x", position.dataset_fingerprint);
  json["model_class"] = position.model_class;
  if (position.model.has_value()) {
    json["model_config"] = nlohmann::ordered_json::parse(
        model_io::FormatHfConfig(*position.model, model_io::ElementType::kF32));
  }
  if (FormatOf(position) == kFormatAdapters) {
    const model::LoraConfig& lora = position.model->lora;
    json["lora"] = {{"rank", lora.rank},
                    {"alpha", lora.alpha},
                    {"dropout", lora.dropout},
                    {"targets", model::ProjectionsText(lora.targets)},
                    {"base_model", position.base_model},
                    {"base_fingerprint", absl::StrFormat("%016x", position.base_fingerprint)}};
  }
  json["skipped_steps"] = position.skipped_steps;
  for (const CarriedSequence& carried : position.carried) {
    json["carried"].push_back(
        {{"place", carried.place}, {"id", carried.id}, {"home_step", carried.home_step}});
  }
  for (const auto& [name, checksum] : manifest.files) json["files"][name] = checksum;
  return json.dump(2) + "\n";
}

absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) return absl::DataLossError("its manifest is not JSON");
  CheckpointManifest manifest;
  TrainPosition& position = manifest.position;
  try {
    const int format = json.at("format").get<int>();
    if (format < kFormat || format > kFormatAdapters) {
      return absl::UnimplementedError(absl::StrCat(
          "its format is ", format, ", this version reads ", kFormat, " to ", kFormatAdapters));
    }
    position.next_step = json.at("next_step").get<uint64_t>();
    position.epoch = json.at("epoch").get<uint64_t>();
    position.offset = json.at("offset").get<uint64_t>();
    position.optimizer_steps = json.at("optimizer_steps").get<uint64_t>();
    position.seed = json.at("seed").get<uint64_t>();
    position.dataset_fingerprint =
        std::stoull(json.at("dataset_fingerprint").get<std::string>(), nullptr, 16);
    position.model_class = json.at("model_class").get<std::string>();
    position.skipped_steps = json.at("skipped_steps").get<std::vector<uint64_t>>();
    if (json.contains("carried")) {
      for (const nlohmann::json& carried : json.at("carried")) {
        position.carried.push_back({.place = carried.at("place").get<uint64_t>(),
                                    .id = carried.at("id").get<uint64_t>(),
                                    .home_step = carried.at("home_step").get<uint64_t>()});
      }
    }
    for (const auto& [name, checksum] : json.at("files").items()) {
      manifest.files[name] = checksum.get<std::string>();
    }
    if (json.contains("model_config")) {
      SB_ASSIGN_OR_RETURN(position.model, model_io::ParseHfConfig(json.at("model_config").dump(),
                                                                  "its model_config"));
    }
    if (format == kFormatAdapters) {
      if (!position.model.has_value()) return absl::DataLossError("its manifest has no model");
      SB_RETURN_IF_ERROR(ReadAdapters(json.at("lora"), position));
    }
  } catch (const std::exception& e) {  // of the JSON library
    return absl::DataLossError(absl::StrCat("its manifest lacks a field: ", e.what()));
  }
  return manifest;
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kCheckpointManifestFile);
  SB_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<CheckpointManifest> manifest = ParseManifest(text);
  if (manifest.ok()) return manifest;
  return absl::Status(manifest.status().code(),
                      absl::StrCat("checkpoint ", folder, ": ", manifest.status().message()));
}

}  // namespace sparsebalance
