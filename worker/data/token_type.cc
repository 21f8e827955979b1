#include "worker/data/token_type.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace sparsebalance::data {

absl::StatusOr<TokenType> TokenTypeFromCode(uint8_t code) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      return static_cast<TokenType>(code);
    case 6:
    case 7:
      return absl::UnimplementedError(
          absl::StrCat("the dtype is ", code == 6 ? "float64" : "float32",
                       ", which holds no token ids; pack the data with an integer dtype"));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("the dtype code is ", code, "; known codes are 1 to 8"));
  }
}

size_t TokenBytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

std::string_view TokenTypeName(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kInt64:
      return "int64";
  }
  return "unknown";
}

int64_t MaxToken(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return std::numeric_limits<uint8_t>::max();
    case TokenType::kInt8:
      return std::numeric_limits<int8_t>::max();
    case TokenType::kInt16:
      return std::numeric_limits<int16_t>::max();
    case TokenType::kUint16:
      return std::numeric_limits<uint16_t>::max();
    case TokenType::kInt32:
    case TokenType::kInt64:
      return std::numeric_limits<int32_t>::max();
  }
  return 0;
}

TokenType TokenTypeForVocabulary(int64_t vocabulary_size) {
  return vocabulary_size <= 65536 ? TokenType::kUint16 : TokenType::kInt32;
}

}  // namespace sparsebalance::data
