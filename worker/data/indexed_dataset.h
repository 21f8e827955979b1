// A tokenized dataset on disk, with random access by sequence id: Megatron's PREFIX.bin and
// PREFIX.idx, optionally PREFIX.mask (which tokens are supervised) and PREFIX.json (what the tokens
// mean). Layouts: index_format.h. Datasets made elsewhere have neither of the last two.
//
//   absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open("/data/corpus");
//   absl::StatusOr<TrainingExample> example = dataset->MakeTrainingExample(42);
//
// Supervision. The mask belongs to tokens: mask[t] = 1 says that predicting token t counts. The
// prediction of token t+1 is made at position t, so position t of a training example has the target
// tokens[t+1] and the loss weight mask[t+1]; the last position has no target and the weight 0, and
// mask[0] has no effect. A sequence of n tokens therefore has at most n-1 supervised targets. The
// loss is divided by their number over the global batch, `supervised_targets`.
//
// Thread-safe after Open().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset_metadata.h"
#include "worker/data/file_io.h"
#include "worker/data/token_type.h"

namespace sparsebalance::data {

// One sequence, ready for a training step. Three vectors of the sequence's length.
struct TrainingExample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;     // tokens[t+1]; the last is 0 and has weight 0
  std::vector<float> loss_weights;  // 1 where the target counts, else 0
};

class IndexedDataset {
 public:
  // Maps the files and checks everything that can be checked without reading the tokens.
  // NOT_FOUND: no .idx or .bin. INVALID_ARGUMENT: not this format, another version or dtype, a mask
  // or a metadata file that does not belong. DATA_LOSS: truncated, or contradicts itself.
  // UNIMPLEMENTED: a float dtype, or multimodal sequences.
  static absl::StatusOr<IndexedDataset> Open(const std::string& prefix);

  uint64_t size() const { return sizes_.size(); }
  uint64_t documents() const { return documents_; }
  int64_t total_tokens() const { return starts_.back(); }
  TokenType token_type() const { return token_type_; }
  bool has_mask() const { return has_mask_; }
  const std::optional<DatasetMetadata>& metadata() const { return metadata_; }

  // Tokens of sequence `id`, NOT_FOUND where there is none.
  absl::StatusOr<int64_t> length(uint64_t id) const;
  // All lengths, by id.
  std::span<const int32_t> lengths() const { return sizes_; }

  // DATA_LOSS where a token is negative, or not below the vocabulary size that metadata states.
  absl::StatusOr<std::vector<int32_t>> Tokens(uint64_t id) const;
  // 1 where the token is supervised. All 1 without a mask file.
  absl::StatusOr<std::vector<uint8_t>> Mask(uint64_t id) const;
  // Number of ones in Mask(id).
  absl::StatusOr<int64_t> supervised_tokens(uint64_t id) const;
  // Number of positions with loss weight 1 in MakeTrainingExample(id).
  absl::StatusOr<int64_t> supervised_targets(uint64_t id) const;
  absl::StatusOr<TrainingExample> MakeTrainingExample(uint64_t id) const;

  // Names the dataset: SHA-256, cut to 64 bits, over the dtype, the counts, every length, the
  // mask's bits, and tokenizer, vocabulary and token digest where metadata states them. The same on
  // every machine; independent of the prefix and of where in .bin the sequences lie.
  uint64_t fingerprint() const { return fingerprint_; }

  // Reads all tokens: each sequence is valid, and .bin has the digest that metadata states.
  absl::Status Verify() const;

 private:
  IndexedDataset() = default;

  absl::Status ReadIndex(std::span<const std::byte> index, const std::string& path);
  absl::Status CheckPointers(const std::string& prefix) const;
  absl::Status OpenMask(const std::string& path);
  absl::Status CheckId(uint64_t id) const;
  int64_t CountSupervised(int64_t begin, int64_t end) const;
  bool Supervised(int64_t token) const;
  void ComputeFingerprint();

  std::string prefix_;
  MappedFile bin_;
  MappedFile mask_;
  bool has_mask_ = false;
  std::optional<DatasetMetadata> metadata_;
  TokenType token_type_ = TokenType::kInt32;
  uint64_t documents_ = 0;          // entries of the document index
  std::vector<int32_t> sizes_;      // [sequence], tokens
  std::vector<int64_t> pointers_;   // [sequence], bytes
  std::vector<int64_t> starts_{0};  // [sequence + 1], first token in the mask's order
  uint64_t fingerprint_ = 0;
};

}  // namespace sparsebalance::data
