// The built-in tokenizer: a token a byte, and a few marks. Needs no vocabulary file and loses
// nothing, whatever the input is.
//
// A document is  kDocumentStart, its bytes, kDocumentEnd.  A message of a conversation is
// kMessageStart, the bytes of its role, kContentStart, the bytes of its content, kMessageEnd.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sparsebalance::data {

struct ByteTokenizer {
  static constexpr std::string_view kName = "byte-264";
  static constexpr int32_t kDocumentStart = 256;
  static constexpr int32_t kDocumentEnd = 257;
  static constexpr int32_t kMessageStart = 258;
  static constexpr int32_t kContentStart = 259;
  static constexpr int32_t kMessageEnd = 260;
  // 261 to 263 stand for nothing: a multiple of 8 suits matrix units.
  static constexpr int64_t kVocabularySize = 264;

  // Appends a token a byte.
  static void Append(std::string_view text, std::vector<int32_t>& tokens);
  // The bytes among `tokens`; marks are left out.
  static std::string Decode(std::span<const int32_t> tokens);
};

}  // namespace sparsebalance::data
