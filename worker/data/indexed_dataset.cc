#include "worker/data/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "worker/data/digest.h"
#include "worker/data/index_format.h"

namespace sparsebalance::data {
namespace {

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Calls use(value) for each of `count` elements until it returns false.
template <typename T, typename F>
void ForEach(std::span<const std::byte> bytes, size_t offset, size_t count, F use) {
  for (size_t i = 0; i < count; ++i) {
    if (!use(i, static_cast<int64_t>(LoadAt<T>(bytes, offset + i * sizeof(T))))) return;
  }
}

template <typename F>
void ForEachToken(TokenType type, std::span<const std::byte> bytes, size_t offset, size_t count,
                  F use) {
  switch (type) {
    case TokenType::kUint8:
      return ForEach<uint8_t>(bytes, offset, count, use);
    case TokenType::kInt8:
      return ForEach<int8_t>(bytes, offset, count, use);
    case TokenType::kInt16:
      return ForEach<int16_t>(bytes, offset, count, use);
    case TokenType::kUint16:
      return ForEach<uint16_t>(bytes, offset, count, use);
    case TokenType::kInt32:
      return ForEach<int32_t>(bytes, offset, count, use);
    case TokenType::kInt64:
      return ForEach<int64_t>(bytes, offset, count, use);
  }
}

}  // namespace

absl::StatusOr<IndexedDataset> IndexedDataset::Open(const std::string& prefix) {
  IndexedDataset dataset;
  dataset.prefix_ = prefix;
  absl::StatusOr<MappedFile> index = MappedFile::Open(prefix + ".idx");
  if (!index.ok()) return index.status();
  absl::StatusOr<MappedFile> bin = MappedFile::Open(prefix + ".bin");
  if (!bin.ok()) return bin.status();
  dataset.bin_ = *std::move(bin);
  absl::Status status = dataset.ReadIndex(index->bytes(), prefix + ".idx");
  if (status.ok()) status = dataset.CheckPointers(prefix);
  if (status.ok() && Exists(prefix + ".mask")) status = dataset.OpenMask(prefix + ".mask");
  if (!status.ok()) return status;
  if (Exists(prefix + ".json")) {
    absl::StatusOr<MappedFile> json = MappedFile::Open(prefix + ".json");
    if (!json.ok()) return json.status();
    absl::StatusOr<DatasetMetadata> metadata =
        ParseMetadata(std::string(AsText(json->bytes())), prefix + ".json");
    if (!metadata.ok()) return metadata.status();
    dataset.metadata_ = *std::move(metadata);
  }
  dataset.ComputeFingerprint();
  return dataset;
}

absl::Status IndexedDataset::ReadIndex(std::span<const std::byte> index, const std::string& path) {
  const std::string_view magic = AsText(index.first(std::min(index.size(), kIndexMagic.size())));
  if (magic != kIndexMagic) {
    if (index.size() < kIndexMagic.size() && kIndexMagic.substr(0, magic.size()) == magic) {
      return absl::DataLossError(absl::StrCat(path, ": truncated, ", index.size(),
                                              " bytes of a header of ", kIndexHeaderBytes));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": does not begin with MMIDIDX; it is no index of this format"));
  }
  if (index.size() < kIndexHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path, ": truncated, ", index.size(),
                                            " bytes of a header of ", kIndexHeaderBytes));
  }
  const auto version = LoadAt<uint64_t>(index, 9);
  if (version != kIndexVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": version ", version, "; this release reads version ", kIndexVersion));
  }
  absl::StatusOr<TokenType> type = TokenTypeFromCode(LoadAt<uint8_t>(index, 17));
  if (!type.ok()) {
    return absl::Status(type.status().code(), absl::StrCat(path, ": ", type.status().message()));
  }
  token_type_ = *type;
  const auto count = LoadAt<uint64_t>(index, 18);
  documents_ = LoadAt<uint64_t>(index, 26);
  // Bounded before multiplying: a damaged count must not overflow into a plausible size.
  const uint64_t body = index.size() - kIndexHeaderBytes;
  if (count > body / 12 || documents_ > body / 8 || count * 12 + documents_ * 8 > body) {
    return absl::DataLossError(absl::StrCat(path, ": truncated, ", index.size(),
                                            " bytes do not hold ", count, " sequences and ",
                                            documents_, " documents"));
  }
  const uint64_t extra = body - count * 12 - documents_ * 8;
  if (extra == count && count > 0) {
    return absl::UnimplementedError(
        absl::StrCat(path,
                     ": has a mode for each sequence, so it is multimodal; only token "
                     "sequences can be trained on"));
  }
  if (extra != 0) {
    return absl::DataLossError(absl::StrCat(path, ": ", extra, " bytes more than ", count,
                                            " sequences and ", documents_, " documents take"));
  }
  sizes_.resize(count);
  pointers_.resize(count);
  starts_.resize(count + 1);
  const size_t sizes_at = kIndexHeaderBytes;
  const size_t pointers_at = sizes_at + count * 4;
  const size_t documents_at = pointers_at + count * 8;
  for (uint64_t i = 0; i < count; ++i) {
    sizes_[i] = LoadAt<int32_t>(index, sizes_at + i * 4);
    pointers_[i] = LoadAt<int64_t>(index, pointers_at + i * 8);
    if (sizes_[i] < 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": sequence ", i, " has the negative size ", sizes_[i]));
    }
    starts_[i + 1] = starts_[i] + sizes_[i];
  }
  int64_t previous = 0;
  for (uint64_t d = 0; d < documents_; ++d) {
    const auto first = LoadAt<int64_t>(index, documents_at + d * 8);
    if (first < previous || first > static_cast<int64_t>(count) || (d == 0 && first != 0)) {
      return absl::DataLossError(absl::StrCat(path, ": document ", d, " begins at sequence ", first,
                                              " of ", count, ", after one that begins at ",
                                              previous));
    }
    previous = first;
  }
  if (documents_ > 0 && previous != static_cast<int64_t>(count)) {
    return absl::DataLossError(absl::StrCat(path, ": the document index ends at sequence ",
                                            previous, ", but there are ", count));
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckPointers(const std::string& prefix) const {
  const auto token_bytes = static_cast<int64_t>(TokenBytes(token_type_));
  const auto bin_bytes = static_cast<int64_t>(bin_.bytes().size());
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const int64_t pointer = pointers_[i];
    if (pointer < 0 || pointer % token_bytes != 0) {
      return absl::DataLossError(absl::StrCat(
          prefix, ".idx: sequence ", i, " begins at byte ", pointer, ", which is no multiple of ",
          token_bytes, ", the size of ", std::string(TokenTypeName(token_type_))));
    }
    // A 31-bit size of 8 bytes each cannot overflow once the pointer is in bounds.
    if (pointer > bin_bytes || sizes_[i] * token_bytes > bin_bytes - pointer) {
      return absl::DataLossError(absl::StrCat(
          prefix, ".bin: has ", bin_bytes, " bytes, but sequence ", i, " of ", sizes_[i],
          " tokens begins at byte ", pointer, "; it is truncated or belongs to another index"));
    }
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::OpenMask(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  mask_ = *std::move(file);
  const std::span<const std::byte> bytes = mask_.bytes();
  if (bytes.size() < kMaskHeaderBytes || AsText(bytes.first(8)) != kMaskMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": does not begin with a mask's header; it is no mask file"));
  }
  const auto version = LoadAt<uint64_t>(bytes, 8);
  if (version != kMaskVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": version ", version, "; this release reads version ", kMaskVersion));
  }
  const auto sequences = LoadAt<uint64_t>(bytes, 16);
  const auto tokens = LoadAt<uint64_t>(bytes, 24);
  if (sequences != size() || tokens != static_cast<uint64_t>(total_tokens())) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is for ", sequences, " sequences and ", tokens, " tokens, but the index has ",
        size(), " and ", total_tokens(), "; it belongs to another dataset"));
  }
  const uint64_t expected = kMaskHeaderBytes + (tokens + 7) / 8;
  if (bytes.size() != expected) {
    return absl::DataLossError(
        absl::StrCat(path, ": has ", bytes.size(), " bytes; ", tokens, " tokens take ", expected));
  }
  if (tokens % 8 != 0 && (std::to_integer<unsigned>(bytes.back()) >> (tokens % 8)) != 0) {
    return absl::DataLossError(absl::StrCat(path, ": bits after the last token are not 0"));
  }
  has_mask_ = true;
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckId(uint64_t id) const {
  if (id < size()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(prefix_, ": there is no sequence ", id, "; ids are in [0, ", size(), ")"));
}

absl::StatusOr<int64_t> IndexedDataset::length(uint64_t id) const {
  absl::Status status = CheckId(id);
  if (!status.ok()) return status;
  return sizes_[id];
}

absl::StatusOr<std::vector<int32_t>> IndexedDataset::Tokens(uint64_t id) const {
  absl::Status status = CheckId(id);
  if (!status.ok()) return status;
  const int64_t limit = metadata_.has_value() ? metadata_->vocabulary_size
                                              : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  std::vector<int32_t> tokens(sizes_[id]);
  ForEachToken(
      token_type_, bin_.bytes(), pointers_[id], tokens.size(), [&](size_t i, int64_t value) {
        if (value < 0 || value >= limit) {
          status =
              absl::DataLossError(absl::StrCat(prefix_, ": token ", i, " of sequence ", id, " is ",
                                               value, "; it must be in [0, ", limit, ")"));
          return false;
        }
        tokens[i] = static_cast<int32_t>(value);
        return true;
      });
  if (!status.ok()) return status;
  return tokens;
}

bool IndexedDataset::Supervised(int64_t token) const {
  if (!has_mask_) return true;
  const auto byte = std::to_integer<unsigned>(mask_.bytes()[kMaskHeaderBytes + token / 8]);
  return ((byte >> (token % 8)) & 1) != 0;
}

int64_t IndexedDataset::CountSupervised(int64_t begin, int64_t end) const {
  if (begin >= end) return 0;
  if (!has_mask_) return end - begin;
  int64_t count = 0;
  for (; begin < end && begin % 8 != 0; ++begin) count += Supervised(begin);
  for (; begin + 8 <= end; begin += 8) {
    count += std::popcount(std::to_integer<unsigned>(mask_.bytes()[kMaskHeaderBytes + begin / 8]));
  }
  for (; begin < end; ++begin) count += Supervised(begin);
  return count;
}

absl::StatusOr<std::vector<uint8_t>> IndexedDataset::Mask(uint64_t id) const {
  absl::Status status = CheckId(id);
  if (!status.ok()) return status;
  std::vector<uint8_t> mask(sizes_[id]);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = Supervised(starts_[id] + i) ? 1 : 0;
  return mask;
}

absl::StatusOr<int64_t> IndexedDataset::supervised_tokens(uint64_t id) const {
  absl::Status status = CheckId(id);
  if (!status.ok()) return status;
  return CountSupervised(starts_[id], starts_[id + 1]);
}

absl::StatusOr<int64_t> IndexedDataset::supervised_targets(uint64_t id) const {
  absl::Status status = CheckId(id);
  if (!status.ok()) return status;
  return CountSupervised(starts_[id] + 1, starts_[id + 1]);
}

absl::StatusOr<TrainingExample> IndexedDataset::MakeTrainingExample(uint64_t id) const {
  absl::StatusOr<std::vector<int32_t>> tokens = Tokens(id);
  if (!tokens.ok()) return tokens.status();
  TrainingExample example;
  example.tokens = *std::move(tokens);
  const size_t n = example.tokens.size();
  example.targets.resize(n);
  example.loss_weights.resize(n);
  for (size_t t = 0; t + 1 < n; ++t) {
    example.targets[t] = example.tokens[t + 1];
    example.loss_weights[t] = Supervised(starts_[id] + t + 1) ? 1.0f : 0.0f;
  }
  return example;
}

void IndexedDataset::ComputeFingerprint() {
  Sha256 digest;
  digest.Add("sparsebalance.dataset.v1");
  digest.AddU64(static_cast<uint64_t>(token_type_));
  digest.AddU64(size());
  digest.AddU64(documents_);
  digest.Add(std::as_bytes(std::span(sizes_)));
  digest.AddU64(has_mask_ ? 1 : 0);
  if (has_mask_) digest.Add(mask_.bytes());
  digest.AddU64(metadata_.has_value() ? 1 : 0);
  if (metadata_.has_value()) {
    // Each text is led by its length, so that none can run into the next.
    for (const std::string* text : {&metadata_->tokenizer, &metadata_->tokens_sha256}) {
      digest.AddU64(text->size());
      digest.Add(*text);
    }
    digest.AddU64(static_cast<uint64_t>(metadata_->vocabulary_size));
  }
  fingerprint_ = digest.Truncated64();
}

absl::Status IndexedDataset::Verify() const {
  for (uint64_t id = 0; id < size(); ++id) {
    absl::Status status = Tokens(id).status();
    if (!status.ok()) return status;
  }
  if (!metadata_.has_value() || metadata_->tokens_sha256.empty()) return absl::OkStatus();
  Sha256 digest;
  digest.Add(bin_.bytes());
  const std::string found = digest.Hex();
  if (found == metadata_->tokens_sha256) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(prefix_, ".bin: its SHA-256 is ", found,
                                          ", but it was packed as ", metadata_->tokens_sha256));
}

}  // namespace sparsebalance::data
