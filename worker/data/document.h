// Documents as they become sequences: tokens and which of them are supervised.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance::data {

struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // as long as tokens, or empty: all supervised
};

// A whole text, supervised throughout.
Document DocumentFromText(std::string_view text);

// One line of a JSONL file, an object with either
//   "text": "...", and optionally "loss_ranges": [[begin, end), ...] in characters (Unicode code
//     points, not bytes and not UTF-16 units) of what is supervised. Ranges may touch and overlap.
//     Without the key the whole text is. The document's end counts where its last character does.
//   "messages": [{"role": "...", "content": "..."}, ...]. The content of messages whose role is in
//     `supervised_roles` is supervised, with the mark that ends it; roles and marks before it are
//     not. The document's end counts where the last message does.
// Other keys are ignored. An empty text, or no message, gives a document without tokens.
// INVALID_ARGUMENT begins with "column N: ", N in bytes from 1; where the JSON is well-formed and
// its content is wrong, N is the column of the object.
absl::StatusOr<Document> DocumentFromJson(std::string_view line,
                                          const std::set<std::string>& supervised_roles);

// Cuts a document into pieces of at most `max_tokens` (at least 16). A cut falls behind the last
// blank line within the last 10 % of a piece, else behind the last line end there, else where the
// piece is full, but not within a UTF-8 character.
std::vector<Document> SplitDocument(Document document, int64_t max_tokens);

}  // namespace sparsebalance::data
