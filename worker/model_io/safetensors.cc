#include "worker/model_io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/model_io/float_formats.h"
#include "worker/model_io/safetensors_header.h"

namespace sparsebalance::model_io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

// Elements converted at a time on the way to a file: small enough to stay in cache.
constexpr size_t kPiece = 64 * 1024;

// Data may lie at any address, so values are loaded by copies, which compilers turn into plain
// loads of vectors.
template <float (*Convert)(uint16_t)>
void FromSixteenBits(const std::byte* from, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    out[i] = Convert(bits);
  }
}

template <uint16_t (*Convert)(float)>
absl::Status WriteSixteenBits(std::span<const float> values, data::PendingFile& file) {
  std::vector<uint16_t> piece(std::min(values.size(), kPiece));
  while (!values.empty()) {
    const size_t count = std::min(values.size(), kPiece);
    for (size_t i = 0; i < count; ++i) piece[i] = Convert(values[i]);
    SB_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(piece).first(count))));
    values = values.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status WriteFloats(std::span<const float> values, data::PendingFile& file) {
  while (!values.empty()) {
    const size_t count = std::min(values.size(), kPiece);
    SB_RETURN_IF_ERROR(file.Write(std::as_bytes(values.first(count))));
    values = values.subspan(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile out;
  out.path_ = path;
  SB_ASSIGN_OR_RETURN(out.file_, data::MappedFile::Open(path));
  const std::span<const std::byte> bytes = out.file_.bytes();
  const auto broken = [&](absl::StatusCode code, const std::string& what) {
    return absl::Status(code, absl::StrCat(path, " is not a whole safetensors file: ", what));
  };
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return broken(absl::StatusCode::kDataLoss, "it is shorter than the length of its header");
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > kMaxHeaderBytes) {
    return broken(absl::StatusCode::kDataLoss,
                  absl::StrCat("its header would be ", length, " bytes, more than the format's ",
                               kMaxHeaderBytes));
  }
  if (length > bytes.size() - sizeof(length)) {
    return broken(absl::StatusCode::kDataLoss,
                  absl::StrCat("its header would be ", length, " bytes, the file has ",
                               bytes.size(), ": it is cut off"));
  }
  out.data_begin_ = sizeof(length) + length;
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(json, bytes.size() - out.data_begin_);
  if (!header.ok()) return broken(header.status().code(), std::string(header.status().message()));
  out.tensors_ = std::move(header->tensors);
  out.metadata_ = std::move(header->metadata);
  for (size_t i = 0; i < out.tensors_.size(); ++i) out.by_name_.emplace(out.tensors_[i].name, i);
  return out;
}

const TensorInfo* SafetensorsFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

absl::Status SafetensorsFile::Read(const TensorInfo& tensor, std::span<float> out) const {
  if (!IsFloatType(tensor.type)) {
    return absl::UnimplementedError(absl::StrCat(path_, ": tensor ", tensor.name, " has type ",
                                                 std::string(ElementTypeName(tensor.type)),
                                                 "; F32, BF16 and F16 are read"));
  }
  if (out.size() != tensor.elements()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", tensor.name, " of shape ",
                                                   ShapeText(tensor.shape), " is read into ",
                                                   out.size(), " elements"));
  }
  const std::span<const std::byte> bytes = Bytes(tensor);
  if (bytes.empty()) return absl::OkStatus();
  switch (tensor.type) {
    case ElementType::kBF16:
      FromSixteenBits<FromBfloat16>(bytes.data(), out);
      break;
    case ElementType::kF16:
      FromSixteenBits<FromHalf>(bytes.data(), out);
      break;
    default:
      std::memcpy(out.data(), bytes.data(), bytes.size());
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorInfo> tensors,
    const std::map<std::string, std::string>& metadata) {
  uint64_t offset = 0;
  std::set<std::string_view> names;
  for (TensorInfo& tensor : tensors) {
    const std::optional<uint64_t> bytes = TensorBytes(tensor.type, tensor.shape);
    const char* wrong = !IsFloatType(tensor.type)               ? "is not F32, BF16 or F16"
                        : !bytes.has_value()                    ? "has an impossible shape"
                        : !names.insert(tensor.name).second     ? "is given twice"
                        : *bytes > (uint64_t{1} << 62) - offset ? "makes the file too large"
                                                                : nullptr;
    if (wrong != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", tensor.name, " ", wrong));
    }
    tensor.begin = offset;
    offset += *bytes;
    tensor.end = offset;
  }
  SafetensorsWriter writer;
  const std::string header = FormatHeader({tensors, metadata});
  if (header.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": a header of ", header.size(), " bytes, more than the format's ", kMaxHeaderBytes));
  }
  const uint64_t length = header.size();
  SB_ASSIGN_OR_RETURN(writer.file_, data::PendingFile::Create(path));
  SB_RETURN_IF_ERROR(writer.file_.Write(std::as_bytes(std::span(&length, 1))));
  SB_RETURN_IF_ERROR(writer.file_.Write(header));
  writer.path_ = path;
  writer.tensors_ = std::move(tensors);
  return writer;
}

absl::Status SafetensorsWriter::Add(std::span<const float> values) {
  if (next_ >= tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": all its tensors are written"));
  }
  const TensorInfo& tensor = tensors_[next_];
  if (values.size() != tensor.elements()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", tensor.name, " of shape ",
                                                   ShapeText(tensor.shape), " has ", values.size(),
                                                   " elements"));
  }
  ++next_;
  switch (tensor.type) {
    case ElementType::kBF16:
      return WriteSixteenBits<ToBfloat16>(values, file_);
    case ElementType::kF16:
      return WriteSixteenBits<ToHalf>(values, file_);
    default:
      return WriteFloats(values, file_);
  }
}

absl::Status SafetensorsWriter::Finish() {
  if (next_ != tensors_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": tensor ", tensors_[next_].name, " was not written"));
  }
  SB_RETURN_IF_ERROR(file_.Sync());
  return file_.Publish();
}

}  // namespace sparsebalance::model_io
