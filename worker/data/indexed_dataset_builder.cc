#include "worker/data/indexed_dataset_builder.h"

#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/index_format.h"

namespace sparsebalance::data {
namespace {

template <typename T>
void AppendValue(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void AppendTokens(std::string& out, std::span<const int32_t> tokens) {
  out.reserve(tokens.size() * sizeof(T));
  for (const int32_t token : tokens) AppendValue(out, static_cast<T>(token));
}

std::string Encode(TokenType type, std::span<const int32_t> tokens) {
  std::string out;
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      AppendTokens<uint8_t>(out, tokens);
      break;
    case TokenType::kInt16:
    case TokenType::kUint16:
      AppendTokens<uint16_t>(out, tokens);
      break;
    case TokenType::kInt32:
      AppendTokens<int32_t>(out, tokens);
      break;
    case TokenType::kInt64:
      AppendTokens<int64_t>(out, tokens);
      break;
  }
  return out;
}

std::string MaskHeader(uint64_t sequences, uint64_t tokens) {
  std::string header(kMaskMagic);
  AppendValue(header, kMaskVersion);
  AppendValue(header, sequences);
  AppendValue(header, tokens);
  return header;
}

constexpr size_t kMaskFlushBytes = 1 << 16;

}  // namespace

absl::StatusOr<IndexedDatasetBuilder> IndexedDatasetBuilder::Create(const std::string& prefix,
                                                                    TokenType type,
                                                                    Options options) {
  if (!options.overwrite) {
    for (const char* suffix : {".idx", ".bin", ".mask", ".json"}) {
      std::error_code error;
      if (std::filesystem::exists(prefix + suffix, error)) {
        return absl::AlreadyExistsError(
            absl::StrCat(prefix, suffix, ": exists; choose another prefix or ask to overwrite it"));
      }
    }
  }
  // If the folder cannot be made, creating the file says why.
  const std::filesystem::path folder = std::filesystem::path(prefix).parent_path();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  absl::StatusOr<PendingFile> bin = PendingFile::Create(prefix + ".bin");
  if (!bin.ok()) return bin.status();
  IndexedDatasetBuilder builder;
  builder.prefix_ = prefix;
  builder.type_ = type;
  builder.bin_ = *std::move(bin);
  return builder;
}

absl::Status IndexedDatasetBuilder::Add(std::span<const int32_t> tokens,
                                        std::span<const uint8_t> mask) {
  const uint64_t id = sizes_.size();
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", id, " has ", tokens.size(),
                                                   " tokens; the format ends at 2147483647"));
  }
  if (!mask.empty() && mask.size() != tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", id, " has ", tokens.size(),
                                                   " tokens and a mask of ", mask.size()));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] > MaxToken(type_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, " of sequence ", id, " is ", tokens[i], "; ",
                       std::string(TokenTypeName(type_)), " holds 0 to ", MaxToken(type_)));
    }
  }
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("mask ", i, " of sequence ", id, " is ", mask[i], "; it must be 0 or 1"));
    }
  }
  const std::string bytes = Encode(type_, tokens);
  absl::Status status = bin_.Write(bytes);
  if (status.ok()) status = AppendMask(mask, tokens.size());
  if (!status.ok()) return status;
  bin_digest_.Add(bytes);
  sizes_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
  return absl::OkStatus();
}

void IndexedDatasetBuilder::EndDocument() {
  const auto end = static_cast<int64_t>(sizes_.size());
  if (documents_.back() != end) documents_.push_back(end);
}

absl::Status IndexedDatasetBuilder::AppendMask(std::span<const uint8_t> mask, size_t count) {
  int64_t position = tokens_;
  for (size_t i = 0; i < count; ++i, ++position) {
    const bool supervised = mask.empty() || mask[i] == 1;
    if (!mask_.open()) {
      if (supervised) continue;
      absl::Status status = StartMask();
      if (!status.ok()) return status;
      // Every token before this one was supervised.
      mask_bytes_.assign(static_cast<size_t>(position / 8), '\xff');
      mask_byte_ = static_cast<uint8_t>((1u << (position % 8)) - 1);
    }
    if (supervised) mask_byte_ = static_cast<uint8_t>(mask_byte_ | 1u << (position % 8));
    if (position % 8 == 7) {
      mask_bytes_.push_back(static_cast<char>(std::exchange(mask_byte_, uint8_t{0})));
    }
  }
  if (mask_bytes_.size() < kMaskFlushBytes) return absl::OkStatus();
  return mask_.Write(std::exchange(mask_bytes_, {}));
}

absl::Status IndexedDatasetBuilder::StartMask() {
  absl::StatusOr<PendingFile> file = PendingFile::Create(prefix_ + ".mask");
  if (!file.ok()) return file.status();
  mask_ = *std::move(file);
  return mask_.Write(MaskHeader(0, 0));  // the counts are known at the end
}

absl::Status IndexedDatasetBuilder::FinishMask() {
  if (tokens_ % 8 != 0) mask_bytes_.push_back(static_cast<char>(mask_byte_));
  absl::Status status = mask_.Write(mask_bytes_);
  if (status.ok()) status = mask_.Overwrite(0, MaskHeader(sizes_.size(), tokens_));
  return status.ok() ? mask_.Sync() : status;
}

absl::Status IndexedDatasetBuilder::WriteIndex(PendingFile& file) const {
  std::string bytes(kIndexMagic);
  AppendValue(bytes, kIndexVersion);
  AppendValue(bytes, static_cast<uint8_t>(type_));
  AppendValue(bytes, static_cast<uint64_t>(sizes_.size()));
  AppendValue(bytes, static_cast<uint64_t>(documents_.size()));
  for (const int32_t size : sizes_) AppendValue(bytes, size);
  int64_t pointer = 0;
  for (const int32_t size : sizes_) {
    AppendValue(bytes, pointer);
    pointer += size * static_cast<int64_t>(TokenBytes(type_));
  }
  for (const int64_t document : documents_) AppendValue(bytes, document);
  absl::Status status = file.Write(bytes);
  return status.ok() ? file.Sync() : status;
}

absl::Status IndexedDatasetBuilder::RemoveOld() const {
  // The index first: without it the rest is no dataset, whenever this is interrupted.
  for (const char* suffix : {".idx", ".bin", ".mask", ".json"}) {
    std::error_code error;
    std::filesystem::remove(prefix_ + suffix, error);
    if (error) return SystemError(error.value(), prefix_ + suffix, "cannot remove");
  }
  return SyncFolderOf(prefix_);
}

absl::Status IndexedDatasetBuilder::Finalize(std::optional<DatasetMetadata> metadata) {
  EndDocument();
  // All that can fail for want of space comes before the old dataset is touched.
  absl::Status status = bin_.Sync();
  const bool has_mask = mask_.open();
  if (status.ok() && has_mask) status = FinishMask();
  if (!status.ok()) return status;
  absl::StatusOr<PendingFile> index = PendingFile::Create(prefix_ + ".idx");
  if (!index.ok()) return index.status();
  status = WriteIndex(*index);
  PendingFile json;
  if (status.ok() && metadata.has_value()) {
    metadata->tokens_sha256 = bin_digest_.Hex();
    absl::StatusOr<PendingFile> file = PendingFile::Create(prefix_ + ".json");
    if (!file.ok()) return file.status();
    json = *std::move(file);
    status = json.Write(WriteMetadata(*metadata));
    if (status.ok()) status = json.Sync();
  }
  if (status.ok()) status = RemoveOld();
  if (status.ok()) status = bin_.Publish();
  if (status.ok() && has_mask) status = mask_.Publish();
  if (status.ok() && metadata.has_value()) status = json.Publish();
  if (status.ok()) status = SyncFolderOf(prefix_);
  if (status.ok()) status = index->Publish();
  return status.ok() ? SyncFolderOf(prefix_) : status;
}

}  // namespace sparsebalance::data
