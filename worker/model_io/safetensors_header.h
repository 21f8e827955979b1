// The JSON header of a safetensors file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model_io/tensor_info.h"

namespace sparsebalance::model_io {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by begin, then name
  std::map<std::string, std::string> metadata;
};

// `data_bytes` follow the header. DATA_LOSS with the reason (and no path) where it breaks the
// format: each tensor's bytes are those of its type and shape, and together they cover the data
// without gap or overlap. UNIMPLEMENTED for an unknown element type.
absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, uint64_t data_bytes);

// The header of tensors that lie one after the other, padded so that data after it are aligned to
// 8 bytes.
std::string FormatHeader(const SafetensorsHeader& header);

}  // namespace sparsebalance::model_io
