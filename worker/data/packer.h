// From text and JSONL files to a dataset.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset_metadata.h"

namespace sparsebalance::data {

enum class InputFormat { kAuto, kText, kJsonLines };  // kAuto: by the file's name
enum class OnTooLong { kSplit, kRefuse };

inline constexpr int64_t kMinCap = 16;

struct PackOptions {
  std::vector<std::string> inputs;  // files and folders
  std::string output;               // prefix
  InputFormat format = InputFormat::kAuto;
  // Longest sequence, its marks included; 0: no limit but the format's 2^31 - 1.
  int64_t max_tokens = 0;
  OnTooLong on_too_long = OnTooLong::kSplit;
  std::set<std::string> supervised_roles = {"assistant"};
  bool overwrite = false;
};

struct PackReport {
  int64_t files = 0;
  int64_t documents = 0;
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t documents_split = 0;
  int64_t empty_documents_skipped = 0;  // JSONL lines without text, and blank lines
  int64_t empty_files_skipped = 0;
  int64_t links_skipped = 0;
  int64_t specials_skipped = 0;
};

// Packs all inputs, in order; a text file is one document, a line of JSONL one. The output depends
// on nothing but the files' contents, their order and the options. Errors name the file, for JSONL
// also line and column; nothing is left behind then. INVALID_ARGUMENT where nothing is left to
// pack.
absl::StatusOr<PackReport> Pack(const PackOptions& options);

}  // namespace sparsebalance::data
