// What `sparsebalance-data inspect` prints.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/indexed_dataset.h"

namespace sparsebalance::data {

struct DatasetSummary {
  std::string prefix;
  uint64_t sequences = 0;
  uint64_t documents = 0;
  int64_t tokens = 0;
  std::string token_type;
  std::string tokenizer;        // empty: unknown, no metadata
  int64_t vocabulary_size = 0;  // 0: unknown
  bool has_mask = false;
  int64_t supervised_targets = 0;
  // Share of the positions with a target whose target counts, in [0, 1]; 0 without such positions.
  double supervised_share = 0;
  // Nearest rank: (percent, tokens) for 0, 10, 50, 90, 99 and 100; empty without sequences.
  std::vector<std::pair<int, int64_t>> length_quantiles;
  uint64_t fingerprint = 0;
};

DatasetSummary Summarize(const IndexedDataset& dataset, const std::string& prefix);

std::string SummaryText(const DatasetSummary& summary);
std::string SummaryJson(const DatasetSummary& summary);

}  // namespace sparsebalance::data
