// Element types of a .bin file, with the codes that Megatron's indexed dataset gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace sparsebalance::data {

enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  // 6 and 7 are float64 and float32: no token ids.
  kUint16 = 8,
};

// UNIMPLEMENTED for the two float types, INVALID_ARGUMENT for a code that stands for nothing.
absl::StatusOr<TokenType> TokenTypeFromCode(uint8_t code);

size_t TokenBytes(TokenType type);
std::string_view TokenTypeName(TokenType type);

// The largest token id that `type` holds; int64's is cut to int32's, which ids are handed out as.
int64_t MaxToken(TokenType type);

// The smallest type for token ids below `vocabulary_size`, as Megatron chooses: uint16 or int32.
TokenType TokenTypeForVocabulary(int64_t vocabulary_size);

}  // namespace sparsebalance::data
