// PREFIX.json: what the tokens of a dataset mean and where they came from. Holds no clock, no host
// and no path, so that packing the same input twice gives the same bytes.
//
//   {"format": "sparsebalance.dataset", "version": 1,
//    "tokenizer": {"name": "byte-264", "vocabulary_size": 264},
//    "counts": {...}, "parameters": {...}, "tokens_sha256": "..."}
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace sparsebalance::data {

struct DatasetMetadata {
  std::string tokenizer;
  int64_t vocabulary_size = 0;  // token ids are in [0, vocabulary_size)
  // Of sources, documents, splits: names to numbers.
  std::map<std::string, int64_t> counts;
  // How the dataset was made: names to values as the command line spells them.
  std::map<std::string, std::string> parameters;
  // SHA-256 over the bytes of PREFIX.bin, in hexadecimal; filled in by the builder.
  std::string tokens_sha256;

  friend bool operator==(const DatasetMetadata&, const DatasetMetadata&) = default;
};

std::string WriteMetadata(const DatasetMetadata& metadata);

// INVALID_ARGUMENT names `path` and what is wrong.
absl::StatusOr<DatasetMetadata> ParseMetadata(const std::string& json, const std::string& path);

}  // namespace sparsebalance::data
