#include "worker/train/tensor_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/model_io/safetensors.h"

namespace sparsebalance {

absl::Status WriteTensorFile(const std::string& path, const std::vector<TensorView>& tensors) {
  std::vector<model_io::TensorInfo> infos;
  infos.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    infos.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  SB_ASSIGN_OR_RETURN(model_io::SafetensorsWriter writer,
                      model_io::SafetensorsWriter::Create(path, std::move(infos), {}));
  for (const TensorView& tensor : tensors) SB_RETURN_IF_ERROR(writer.Add(tensor.data));
  return writer.Finish();
}

absl::StatusOr<TensorFile> TensorFile::Read(const std::string& path) {
  SB_ASSIGN_OR_RETURN(const model_io::SafetensorsFile file, model_io::SafetensorsFile::Open(path));
  TensorFile out;
  out.path_ = path;
  uint64_t bytes = 0;
  for (const model_io::TensorInfo& tensor : file.tensors()) bytes += tensor.bytes();
  out.data_.reserve(bytes / sizeof(float));
  for (const model_io::TensorInfo& tensor : file.tensors()) {
    if (tensor.type != model_io::ElementType::kF32) {
      return absl::UnimplementedError(
          absl::StrCat(path, ": tensor ", tensor.name, " has type ",
                       std::string(model_io::ElementTypeName(tensor.type)), ", only F32 is read"));
    }
    const Entry entry{tensor.shape, out.data_.size(), static_cast<size_t>(tensor.elements())};
    out.data_.resize(entry.begin + entry.count);
    SB_RETURN_IF_ERROR(file.Read(tensor, std::span(out.data_).subspan(entry.begin)));
    out.tensors_.emplace(tensor.name, entry);
  }
  return out;
}

absl::StatusOr<std::span<const float>> TensorFile::Get(const std::string& name,
                                                       const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, " has no tensor ", name));
  }
  if (found->second.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": tensor ", name, " has shape ", model_io::ShapeText(found->second.shape),
        ", the model needs ", model_io::ShapeText(shape)));
  }
  return std::span<const float>(data_.data() + found->second.begin, found->second.count);
}

}  // namespace sparsebalance
