#include "worker/train/tensor_file.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/data/file_io.h"
#include "worker/train/file_util.h"

namespace sparsebalance {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

int64_t Elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

absl::Status WriteTensorFile(const std::string& path, const std::vector<TensorView>& tensors) {
  nlohmann::ordered_json header;
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    if (Elements(tensor.shape) != static_cast<int64_t>(tensor.data.size())) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " of shape [",
                                                     absl::StrJoin(tensor.shape, ", "), "] has ",
                                                     tensor.data.size(), " elements"));
    }
    const uint64_t bytes = tensor.data.size_bytes();
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the data begins aligned
  const uint64_t length = text.size();

  SB_ASSIGN_OR_RETURN(data::PendingFile file, data::PendingFile::Create(path));
  SB_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(&length, 1))));
  SB_RETURN_IF_ERROR(file.Write(text));
  for (const TensorView& tensor : tensors) {
    SB_RETURN_IF_ERROR(file.Write(std::as_bytes(tensor.data)));
  }
  SB_RETURN_IF_ERROR(file.Sync());
  return file.Publish();
}

absl::StatusOr<TensorFile> TensorFile::Read(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  const auto broken = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat(path, " is not a whole tensor file: ", what));
  };
  uint64_t length = 0;
  if (bytes->size() < sizeof(length)) return broken("shorter than its header");
  std::memcpy(&length, bytes->data(), sizeof(length));
  if (length > bytes->size() - sizeof(length)) return broken("shorter than its header");
  const nlohmann::json header = nlohmann::json::parse(
      bytes->data() + sizeof(length), bytes->data() + sizeof(length) + length, nullptr, false);
  if (!header.is_object()) return broken("the header is not a JSON object");
  const size_t data_begin = sizeof(length) + length;
  const size_t data_bytes = bytes->size() - data_begin;

  TensorFile file;
  file.path_ = path;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
        entry["data_offsets"].size() != 2 || !entry["shape"].is_array()) {
      return broken(absl::StrCat("the entry of tensor ", name, " lacks a field"));
    }
    if (entry["dtype"] != "F32") {
      return absl::UnimplementedError(absl::StrCat(path, ": tensor ", name, " has type ",
                                                   entry["dtype"].dump(), ", only F32 is read"));
    }
    Entry parsed;
    for (const auto& size : entry["shape"]) {
      if (!size.is_number_unsigned()) return broken(absl::StrCat("shape of tensor ", name));
      parsed.shape.push_back(size.get<int64_t>());
    }
    const auto& offsets = entry["data_offsets"];
    if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
      return broken(absl::StrCat("offsets of tensor ", name));
    }
    const auto begin = offsets[0].get<uint64_t>();
    const auto end = offsets[1].get<uint64_t>();
    if (begin > end || end > data_bytes || begin % sizeof(float) != 0 ||
        end - begin != static_cast<uint64_t>(Elements(parsed.shape)) * sizeof(float)) {
      return broken(absl::StrCat("the data of tensor ", name, " lies outside the file"));
    }
    parsed.begin = begin / sizeof(float);
    parsed.count = (end - begin) / sizeof(float);
    file.tensors_.emplace(name, std::move(parsed));
  }
  file.data_.resize(data_bytes / sizeof(float));
  std::memcpy(file.data_.data(), bytes->data() + data_begin, file.data_.size() * sizeof(float));
  return file;
}

absl::StatusOr<std::span<const float>> TensorFile::Get(const std::string& name,
                                                       const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, " has no tensor ", name));
  }
  if (found->second.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": tensor ", name, " has shape [", absl::StrJoin(found->second.shape, ", "),
        "], the model needs [", absl::StrJoin(shape, ", "), "]"));
  }
  return std::span<const float>(data_.data() + found->second.begin, found->second.count);
}

}  // namespace sparsebalance
