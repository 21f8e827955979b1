#include "worker/data/byte_tokenizer.h"

namespace sparsebalance::data {

void ByteTokenizer::Append(std::string_view text, std::vector<int32_t>& tokens) {
  tokens.reserve(tokens.size() + text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
}

std::string ByteTokenizer::Decode(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace sparsebalance::data
