#include "worker/data/dataset_metadata.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::data {
namespace {

constexpr char kFormat[] = "sparsebalance.dataset";
constexpr int kVersion = 1;

}  // namespace

std::string WriteMetadata(const DatasetMetadata& metadata) {
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"tokenizer", {{"name", metadata.tokenizer}, {"vocabulary_size", metadata.vocabulary_size}}},
      {"counts", metadata.counts},
      {"parameters", metadata.parameters},
      {"tokens_sha256", metadata.tokens_sha256},
  };
  return json.dump(2) + "\n";
}

absl::StatusOr<DatasetMetadata> ParseMetadata(const std::string& json, const std::string& path) {
  try {
    const nlohmann::json root = nlohmann::json::parse(json);
    if (root.value("format", "") != kFormat) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": \"format\" is not \"", kFormat, "\"; it describes no dataset"));
    }
    if (root.at("version").get<int>() != kVersion) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": version ", root.at("version").get<int>(), "; this release reads ", kVersion));
    }
    DatasetMetadata metadata;
    metadata.tokenizer = root.at("tokenizer").at("name").get<std::string>();
    metadata.vocabulary_size = root.at("tokenizer").at("vocabulary_size").get<int64_t>();
    metadata.counts = root.at("counts").get<std::map<std::string, int64_t>>();
    metadata.parameters = root.at("parameters").get<std::map<std::string, std::string>>();
    metadata.tokens_sha256 = root.at("tokens_sha256").get<std::string>();
    if (metadata.vocabulary_size < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": vocabulary_size is ", metadata.vocabulary_size, "; it must be at least 1"));
    }
    return metadata;
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", e.what()));
  }
}

}  // namespace sparsebalance::data
