#include "worker/data/document.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/data/byte_tokenizer.h"

namespace sparsebalance::data {
namespace {

using nlohmann::json;

bool IsContinuation(int32_t token) { return token >= 0x80 && token < 0xc0; }

void Push(Document& document, int32_t token, bool supervised) {
  document.tokens.push_back(token);
  document.mask.push_back(supervised ? 1 : 0);
}

void Push(Document& document, std::string_view text, bool supervised) {
  ByteTokenizer::Append(text, document.tokens);
  document.mask.resize(document.tokens.size(), supervised ? 1 : 0);
}

// Byte offset of every character, and of the end. JSON strings are valid UTF-8: the parser says so.
std::vector<size_t> CharacterOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsContinuation(static_cast<unsigned char>(text[i]))) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

absl::StatusOr<Document> FromText(const json& object, const std::string& text) {
  if (text.empty()) return Document();
  Document document = DocumentFromText(text);
  const auto ranges = object.find("loss_ranges");
  if (ranges == object.end()) return document;
  if (!ranges->is_array()) return absl::InvalidArgumentError("\"loss_ranges\" is no array");
  document.mask.assign(document.tokens.size(), 0);
  const std::vector<size_t> offsets = CharacterOffsets(text);
  const size_t characters = offsets.size() - 1;
  for (size_t i = 0; i < ranges->size(); ++i) {
    const json& range = (*ranges)[i];
    if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() ||
        !range[1].is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat("loss_ranges[", i, "] is ", range.dump(),
                                                     "; it must be [begin, end], two counts"));
    }
    const auto begin = range[0].get<uint64_t>();
    const auto end = range[1].get<uint64_t>();
    if (begin > end || end > characters) {
      return absl::InvalidArgumentError(absl::StrCat("loss_ranges[", i, "] is [", begin, ", ", end,
                                                     ") in a text of ", characters, " characters"));
    }
    // The document's start mark comes before the text.
    std::fill(document.mask.begin() + 1 + static_cast<int64_t>(offsets[begin]),
              document.mask.begin() + 1 + static_cast<int64_t>(offsets[end]), uint8_t{1});
  }
  document.mask.back() = document.mask[document.mask.size() - 2];
  return document;
}

absl::StatusOr<Document> FromMessages(const json& messages,
                                      const std::set<std::string>& supervised_roles) {
  if (!messages.is_array()) return absl::InvalidArgumentError("\"messages\" is no array");
  Document document;
  if (messages.empty()) return document;
  Push(document, ByteTokenizer::kDocumentStart, false);
  bool supervised = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const json& message = messages[i];
    std::string texts[2];
    const char* keys[2] = {"role", "content"};
    for (int k = 0; k < 2; ++k) {
      if (!message.is_object() || !message.contains(keys[k]) || !message[keys[k]].is_string()) {
        return absl::InvalidArgumentError(
            absl::StrCat("messages[", i, "] has no string \"", keys[k], "\""));
      }
      texts[k] = message[keys[k]].get<std::string>();
    }
    supervised = supervised_roles.contains(texts[0]);
    Push(document, ByteTokenizer::kMessageStart, false);
    Push(document, texts[0], false);
    Push(document, ByteTokenizer::kContentStart, false);
    Push(document, texts[1], supervised);
    Push(document, ByteTokenizer::kMessageEnd, supervised);
  }
  Push(document, ByteTokenizer::kDocumentEnd, supervised);
  return document;
}

absl::StatusOr<Document> FromObject(const json& object,
                                    const std::set<std::string>& supervised_roles) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("is no object but ", object.type_name()));
  }
  const bool has_text = object.contains("text");
  const bool has_messages = object.contains("messages");
  if (has_text == has_messages) {
    return absl::InvalidArgumentError(has_text ? "has both \"text\" and \"messages\"; keep one"
                                               : "has neither \"text\" nor \"messages\"");
  }
  if (has_messages) return FromMessages(object["messages"], supervised_roles);
  if (!object["text"].is_string()) return absl::InvalidArgumentError("\"text\" is no string");
  return FromText(object, object["text"].get_ref<const std::string&>());
}

// Where a piece that begins at `begin` ends, with at most `max_tokens`.
size_t CutBehind(const std::vector<int32_t>& tokens, size_t begin, size_t max_tokens) {
  const size_t full = begin + max_tokens;
  if (full >= tokens.size()) return tokens.size();
  const size_t earliest = full - max_tokens / 10;
  size_t line = 0;
  for (size_t end = full; end >= earliest && end > begin + 1; --end) {
    if (tokens[end - 1] != '\n') continue;
    if (tokens[end - 2] == '\n') return end;
    if (line == 0) line = end;
  }
  if (line != 0) return line;
  // At most 3 bytes of a character follow its first; more are no UTF-8, and may be cut anywhere.
  for (size_t end = full; end + 3 >= full; --end) {
    if (!IsContinuation(tokens[end])) return end;
  }
  return full;
}

}  // namespace

Document DocumentFromText(std::string_view text) {
  Document document;
  document.tokens.reserve(text.size() + 2);
  document.tokens.push_back(ByteTokenizer::kDocumentStart);
  ByteTokenizer::Append(text, document.tokens);
  document.tokens.push_back(ByteTokenizer::kDocumentEnd);
  return document;
}

absl::StatusOr<Document> DocumentFromJson(std::string_view line,
                                          const std::set<std::string>& supervised_roles) {
  json object;
  try {
    object = json::parse(line);
  } catch (const json::parse_error& e) {
    // The library's text repeats the position with a line number that is always 1.
    const std::string_view what = e.what();
    const size_t colon = what.find(": ");
    return absl::InvalidArgumentError(
        absl::StrCat("column ", e.byte, ": ",
                     std::string(colon == std::string_view::npos ? what : what.substr(colon + 2))));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("column 1: ", e.what()));
  }
  absl::StatusOr<Document> document = FromObject(object, supervised_roles);
  if (document.ok()) return document;
  const size_t column = std::min(line.find_first_not_of(" \t"), line.size());
  return absl::InvalidArgumentError(
      absl::StrCat("column ", column + 1, ": ", document.status().message()));
}

std::vector<Document> SplitDocument(Document document, int64_t max_tokens) {
  std::vector<Document> pieces;
  const auto cap = static_cast<size_t>(max_tokens);
  if (document.tokens.size() <= cap) {
    pieces.push_back(std::move(document));
    return pieces;
  }
  for (size_t begin = 0; begin < document.tokens.size();) {
    const auto first = static_cast<int64_t>(begin);
    const auto last = static_cast<int64_t>(CutBehind(document.tokens, begin, cap));
    Document& piece = pieces.emplace_back();
    piece.tokens.assign(document.tokens.begin() + first, document.tokens.begin() + last);
    if (!document.mask.empty()) {
      piece.mask.assign(document.mask.begin() + first, document.mask.begin() + last);
    }
    begin = static_cast<size_t>(last);
  }
  return pieces;
}

}  // namespace sparsebalance::data
