// What a model file says about a tensor, without its values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsebalance::model_io {

// Element types of the safetensors format. Values are read and written for kF32, kBF16 and kF16;
// the others are known only so that a file that holds them can be checked and listed.
enum class ElementType {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
};

// As in a safetensors header: "F32", "BF16", ...
std::string_view ElementTypeName(ElementType type);
std::optional<ElementType> ElementTypeFromName(std::string_view name);
uint64_t ElementBytes(ElementType type);
// Those whose values are read and written.
inline bool IsFloatType(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kBF16 || type == ElementType::kF16;
}

// "fp32", "bf16" and "fp16", as flags name them. INVALID_ARGUMENT for anything else.
absl::StatusOr<ElementType> ElementTypeFromFlag(std::string_view text);

struct TensorInfo {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header

  uint64_t bytes() const { return end - begin; }
  uint64_t elements() const { return bytes() / ElementBytes(type); }
};

// "[2, 3]".
std::string ShapeText(const std::vector<int64_t>& shape);

// Bytes of a tensor of that shape; nothing where they exceed 63 bits or a size is negative.
std::optional<uint64_t> TensorBytes(ElementType type, const std::vector<int64_t>& shape);

}  // namespace sparsebalance::model_io
