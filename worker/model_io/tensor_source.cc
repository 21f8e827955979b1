#include "worker/model_io/tensor_source.h"

#include <bit>

#include "kernels/status_macros.h"

namespace sparsebalance::model_io {

absl::StatusOr<uint64_t> Fingerprint(const TensorSource& source) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a, over words
  std::vector<float> values;
  for (const TensorInfo& tensor : source.tensors) {
    int64_t elements = 1;
    for (const int64_t n : tensor.shape) elements *= n;
    values.resize(static_cast<size_t>(elements));
    SB_RETURN_IF_ERROR(source.read(tensor, values));
    for (const float value : values) {
      hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3u;
    }
  }
  return hash;
}

}  // namespace sparsebalance::model_io
