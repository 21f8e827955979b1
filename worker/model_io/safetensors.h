// Named tensors in a file in the safetensors layout: eight bytes with the length of a JSON header
// (little-endian), the header, the data, without holes.
//
//   SB_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open("model.safetensors"));
//   const TensorInfo* norm = file.Find("model.norm.weight");
//   std::vector<float> values(norm->elements());
//   SB_RETURN_IF_ERROR(file.Read(*norm, values));
//
//   SB_ASSIGN_OR_RETURN(SafetensorsWriter writer,
//                       SafetensorsWriter::Create("out.safetensors", std::move(tensors), {}));
//   for (...) SB_RETURN_IF_ERROR(writer.Add(values));   // in the order of `tensors`
//   SB_RETURN_IF_ERROR(writer.Finish());
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/file_io.h"
#include "worker/model_io/tensor_info.h"

namespace sparsebalance::model_io {

// Bound of the format on the header, so that a broken length cannot ask for all memory.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// A whole file, mapped: opening reads the header only. The file must not be cut short while open;
// renaming or removing it is fine.
class SafetensorsFile {
 public:
  // Checks everything that the header says against the format and the file's size. DATA_LOSS, with
  // path and reason, for a file that is cut off or breaks the format; UNIMPLEMENTED for an element
  // type that the format does not know; NOT_FOUND or the system's error.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t file_bytes() const { return file_.bytes().size(); }
  // In the order of the data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // The header's `__metadata__`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr where there is none of that name.
  const TensorInfo* Find(std::string_view name) const;

  // `tensor` is one of tensors(). out [elements]. UNIMPLEMENTED, naming tensor and type, unless the
  // type is F32, BF16 or F16; INVALID_ARGUMENT where out has another size.
  absl::Status Read(const TensorInfo& tensor, std::span<float> out) const;
  // The values as they lie in the file.
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const {
    return file_.bytes().subspan(data_begin_ + tensor.begin, tensor.bytes());
  }

 private:
  std::string path_;
  data::MappedFile file_;
  size_t data_begin_ = 0;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

// Writes a file one tensor at a time, aside; Finish() makes it durable and gives it its name.
// Destroyed before that, it leaves nothing. A full disk is RESOURCE_EXHAUSTED with the path.
class SafetensorsWriter {
 public:
  // The types are F32, BF16 or F16; `begin` and `end` are filled here. INVALID_ARGUMENT for other
  // types, sizes that do not exist, or a name given twice.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, std::vector<TensorInfo> tensors,
      const std::map<std::string, std::string>& metadata);

  // The values of the next tensor, rounded to nearest even. INVALID_ARGUMENT where their number is
  // not that of its shape.
  absl::Status Add(std::span<const float> values);
  // FAILED_PRECONDITION unless every tensor was added.
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;

  std::string path_;
  data::PendingFile file_;
  std::vector<TensorInfo> tensors_;
  size_t next_ = 0;
};

}  // namespace sparsebalance::model_io
