// Writes a dataset that IndexedDataset (and Megatron) reads, sequence by sequence, in constant
// memory but for 12 bytes a sequence.
//
//   auto builder = IndexedDatasetBuilder::Create(prefix, TokenType::kUint16, {});
//   builder->Add(tokens, mask); builder->EndDocument(); ...
//   builder->Finalize(metadata);
//
// Nothing appears under the prefix before Finalize(), which publishes .idx last: a reader never
// sees half a dataset. A builder that is destroyed before leaves nothing behind. A mask file is
// written only where some token is unsupervised.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset_metadata.h"
#include "worker/data/digest.h"
#include "worker/data/file_io.h"
#include "worker/data/token_type.h"

namespace sparsebalance::data {

class IndexedDatasetBuilder {
 public:
  struct Options {
    // Replace a dataset that has this prefix; otherwise it is an error.
    bool overwrite = false;
  };

  // Makes the prefix's folder where it is missing. ALREADY_EXISTS where the prefix is taken; the
  // system's error where the folder cannot be made or written.
  static absl::StatusOr<IndexedDatasetBuilder> Create(const std::string& prefix, TokenType type,
                                                      Options options);

  // Adds a sequence to the current document. `mask` has an entry a token, or none at all for a
  // sequence that is supervised throughout. INVALID_ARGUMENT: a token that the type cannot hold, a
  // mask of another size or with other values than 0 and 1, a sequence of 2^31 tokens or more.
  // After an error of the file system the builder is of no further use.
  absl::Status Add(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {});
  void EndDocument();

  uint64_t sequences() const { return sizes_.size(); }
  int64_t tokens() const { return tokens_; }

  // Publishes the dataset. Without metadata it looks like one made elsewhere.
  absl::Status Finalize(std::optional<DatasetMetadata> metadata);

 private:
  IndexedDatasetBuilder() = default;

  absl::Status AppendMask(std::span<const uint8_t> mask, size_t count);
  absl::Status StartMask();
  absl::Status FinishMask();
  absl::Status WriteIndex(PendingFile& file) const;
  absl::Status RemoveOld() const;

  std::string prefix_;
  TokenType type_ = TokenType::kUint16;
  PendingFile bin_;
  Sha256 bin_digest_;
  std::vector<int32_t> sizes_;
  std::vector<int64_t> documents_{0};
  int64_t tokens_ = 0;
  PendingFile mask_;  // not opened before the first unsupervised token
  std::string mask_bytes_;
  uint8_t mask_byte_ = 0;  // bits of the tokens since the last multiple of 8
};

}  // namespace sparsebalance::data
