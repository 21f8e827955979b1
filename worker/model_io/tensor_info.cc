#include "worker/model_io/tensor_info.h"

#include <array>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sparsebalance::model_io {
namespace {

struct TypeRow {
  ElementType type;
  std::string_view name;
  uint64_t bytes;
};

constexpr std::array kTypes = {
    TypeRow{ElementType::kF32, "F32", 4},        TypeRow{ElementType::kBF16, "BF16", 2},
    TypeRow{ElementType::kF16, "F16", 2},        TypeRow{ElementType::kF64, "F64", 8},
    TypeRow{ElementType::kI64, "I64", 8},        TypeRow{ElementType::kI32, "I32", 4},
    TypeRow{ElementType::kI16, "I16", 2},        TypeRow{ElementType::kI8, "I8", 1},
    TypeRow{ElementType::kU64, "U64", 8},        TypeRow{ElementType::kU32, "U32", 4},
    TypeRow{ElementType::kU16, "U16", 2},        TypeRow{ElementType::kU8, "U8", 1},
    TypeRow{ElementType::kBool, "BOOL", 1},      TypeRow{ElementType::kF8E4M3, "F8_E4M3", 1},
    TypeRow{ElementType::kF8E5M2, "F8_E5M2", 1},
};

const TypeRow& Row(ElementType type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

std::string_view ElementTypeName(ElementType type) { return Row(type).name; }

uint64_t ElementBytes(ElementType type) { return Row(type).bytes; }

std::optional<ElementType> ElementTypeFromName(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

absl::StatusOr<ElementType> ElementTypeFromFlag(std::string_view text) {
  if (text == "fp32") return ElementType::kF32;
  if (text == "bf16") return ElementType::kBF16;
  if (text == "fp16") return ElementType::kF16;
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text), "' is no element type: fp32, bf16 or fp16"));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::optional<uint64_t> TensorBytes(ElementType type, const std::vector<int64_t>& shape) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t bytes = ElementBytes(type);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (bytes > kMost / static_cast<uint64_t>(size)) {
      return std::nullopt;
    } else {
      bytes *= static_cast<uint64_t>(size);
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace sparsebalance::model_io
