#include "worker/data/dataset_summary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::data {

DatasetSummary Summarize(const IndexedDataset& dataset, const std::string& prefix) {
  DatasetSummary summary;
  summary.prefix = prefix;
  summary.sequences = dataset.size();
  summary.documents = dataset.documents() > 0 ? dataset.documents() - 1 : 0;
  summary.tokens = dataset.total_tokens();
  summary.token_type = std::string(TokenTypeName(dataset.token_type()));
  if (dataset.metadata().has_value()) {
    summary.tokenizer = dataset.metadata()->tokenizer;
    summary.vocabulary_size = dataset.metadata()->vocabulary_size;
  }
  summary.has_mask = dataset.has_mask();
  summary.fingerprint = dataset.fingerprint();

  std::vector<int32_t> lengths(dataset.lengths().begin(), dataset.lengths().end());
  std::sort(lengths.begin(), lengths.end());
  int64_t positions = 0;
  for (uint64_t id = 0; id < dataset.size(); ++id) {
    summary.supervised_targets += dataset.supervised_targets(id).value_or(0);
    positions += std::max(dataset.lengths()[id] - 1, 0);
  }
  if (positions > 0) {
    summary.supervised_share =
        static_cast<double>(summary.supervised_targets) / static_cast<double>(positions);
  }
  if (lengths.empty()) return summary;
  for (const int percent : {0, 10, 50, 90, 99, 100}) {
    const size_t rank = (lengths.size() * percent + 99) / 100;  // from 1
    summary.length_quantiles.emplace_back(percent, lengths[rank == 0 ? 0 : rank - 1]);
  }
  return summary;
}

std::string SummaryText(const DatasetSummary& summary) {
  std::string text = absl::StrFormat(
      "dataset      %s\n"
      "sequences    %u in %u documents\n"
      "tokens       %d as %s\n"
      "tokenizer    %s\n"
      "supervised   %.2f %% of targets (%d), %s\n"
      "fingerprint  %016x\n",
      summary.prefix, summary.sequences, summary.documents, summary.tokens, summary.token_type,
      summary.tokenizer.empty()
          ? "unknown (no metadata)"
          : absl::StrCat(summary.tokenizer, ", vocabulary of ", summary.vocabulary_size),
      100 * summary.supervised_share, summary.supervised_targets,
      summary.has_mask ? "by its mask" : "no mask: all tokens", summary.fingerprint);
  if (summary.length_quantiles.empty()) return text;
  absl::StrAppend(&text, "lengths     ");
  for (const auto& [percent, tokens] : summary.length_quantiles) {
    const std::string name = percent == 0     ? "min"
                             : percent == 100 ? "max"
                                              : absl::StrCat("p", percent);
    absl::StrAppend(&text, " ", name, " ", tokens);
  }
  return text + "\n";
}

std::string SummaryJson(const DatasetSummary& summary) {
  nlohmann::ordered_json quantiles = nlohmann::ordered_json::object();
  for (const auto& [percent, tokens] : summary.length_quantiles) {
    quantiles[absl::StrCat("p", percent)] = tokens;
  }
  nlohmann::ordered_json json = {
      {"prefix", summary.prefix},
      {"sequences", summary.sequences},
      {"documents", summary.documents},
      {"tokens", summary.tokens},
      {"token_type", summary.token_type},
      {"tokenizer", nullptr},
      {"vocabulary_size", nullptr},
      {"has_mask", summary.has_mask},
      {"supervised_targets", summary.supervised_targets},
      {"supervised_share", summary.supervised_share},
      {"length_quantiles", quantiles},
      // In hexadecimal: JSON readers lose digits of 64-bit numbers.
      {"fingerprint", absl::StrFormat("%016x", summary.fingerprint)},
  };
  if (!summary.tokenizer.empty()) {
    json["tokenizer"] = summary.tokenizer;
    json["vocabulary_size"] = summary.vocabulary_size;
  }
  // A prefix need not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sparsebalance::data
