// The tensors of a checkpoint: float32, in one safetensors file (model_io/safetensors.h) that is
// written and read whole.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance {

struct TensorView {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> data;  // row-major, product of the shape
};

absl::Status WriteTensorFile(const std::string& path, const std::vector<TensorView>& tensors);

class TensorFile {
 public:
  // DATA_LOSS for a file that is cut off or whose header is not safetensors; UNIMPLEMENTED for
  // another element type than F32.
  static absl::StatusOr<TensorFile> Read(const std::string& path);

  // NOT_FOUND naming the tensor, INVALID_ARGUMENT where the shape is another.
  absl::StatusOr<std::span<const float>> Get(const std::string& name,
                                             const std::vector<int64_t>& shape) const;
  size_t size() const { return tensors_.size(); }

 private:
  struct Entry {
    std::vector<int64_t> shape;
    size_t begin = 0;  // floats
    size_t count = 0;
  };
  std::string path_;
  std::vector<float> data_;
  std::map<std::string, Entry> tensors_;
};

}  // namespace sparsebalance
