#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model_io/tensor_info.h"

namespace sparsebalance::model_io {

// Where the values of a model come from, one tensor at a time.
struct TensorSource {
  std::vector<TensorInfo> tensors;  // names, shapes and types; offsets do not matter
  std::function<absl::Status(const TensorInfo& tensor, std::span<float> values)> read;
};

// A hash of all values, in their order and as float32: the same where they are the same bit by bit.
absl::StatusOr<uint64_t> Fingerprint(const TensorSource& source);

}  // namespace sparsebalance::model_io
