#include "worker/data/document.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/byte_tokenizer.h"

namespace sparsebalance::data {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::set<std::string>& Roles() {
  static const std::set<std::string> roles = {"assistant"};
  return roles;
}

Document FromJson(const std::string& line) {
  absl::StatusOr<Document> document = DocumentFromJson(line, Roles());
  EXPECT_TRUE(document.ok()) << document.status();
  return document.ok() ? *document : Document();
}

// The bytes that are supervised, marks as '<' and '>' for document and '}' for a message's end.
std::string SupervisedText(const Document& document) {
  EXPECT_EQ(document.mask.size(), document.tokens.size());
  std::string text;
  for (size_t i = 0; i < document.mask.size(); ++i) {
    if (document.mask[i] == 0) continue;
    switch (document.tokens[i]) {
      case ByteTokenizer::kDocumentStart:
        text += '<';
        break;
      case ByteTokenizer::kDocumentEnd:
        text += '>';
        break;
      case ByteTokenizer::kMessageEnd:
        text += '}';
        break;
      default:
        text += static_cast<char>(document.tokens[i]);
    }
  }
  return text;
}

TEST(DocumentTest, TextKeepsEveryByteBetweenItsMarks) {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes.push_back(static_cast<char>(b));
  const Document document = DocumentFromText(bytes);
  ASSERT_EQ(document.tokens.size(), 258u);
  EXPECT_EQ(document.tokens.front(), ByteTokenizer::kDocumentStart);
  EXPECT_EQ(document.tokens.back(), ByteTokenizer::kDocumentEnd);
  EXPECT_EQ(ByteTokenizer::Decode(document.tokens), bytes);
  EXPECT_THAT(document.mask, IsEmpty());
}

TEST(DocumentTest, JsonTextIsSupervisedThroughoutWithoutRanges) {
  const Document document = FromJson(R"({"text": "a\u00e9", "other": [1]})");
  EXPECT_EQ(ByteTokenizer::Decode(document.tokens), "a\xc3\xa9");
  EXPECT_THAT(document.mask, IsEmpty());
}

TEST(DocumentTest, LossRangesCountCharactersOfOneToFourBytes) {
  // a, é (2 bytes), € (3), 😀 (4, a surrogate pair in JSON), z.
  const std::string text = R"("text": "a\u00e9\u20ac\ud83d\ude00z")";
  const auto supervised = [&](const std::string& ranges) {
    return SupervisedText(FromJson("{" + text + ", \"loss_ranges\": " + ranges + "}"));
  };
  EXPECT_EQ(supervised("[]"), "");
  EXPECT_EQ(supervised("[[0,1]]"), "a");
  EXPECT_EQ(supervised("[[1,2]]"), "\xc3\xa9");
  EXPECT_EQ(supervised("[[2,4]]"), "\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(supervised("[[3,4],[0,1]]"), "a\xf0\x9f\x98\x80");
  EXPECT_EQ(supervised("[[0,2],[1,3],[2,2]]"), "a\xc3\xa9\xe2\x82\xac");
  EXPECT_EQ(supervised("[[4,5]]"), "z>") << "the end counts with the last character";
  EXPECT_EQ(supervised("[[0,5]]"), "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z>");
}

TEST(DocumentTest, OnlyTheContentOfSupervisedRolesCounts) {
  const std::string line =
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
          {"role": "assistant", "content": "one"}, {"role": "user", "content": "r"},
          {"role": "assistant", "content": "two"}]})";
  const Document document = FromJson(line);
  EXPECT_EQ(SupervisedText(document), "one}two}>");
  EXPECT_EQ(ByteTokenizer::Decode(document.tokens), "systemsuserqassistantoneuserrassistanttwo");
  absl::StatusOr<Document> users = DocumentFromJson(line, {"user", "system"});
  ASSERT_TRUE(users.ok());
  EXPECT_EQ(SupervisedText(*users), "s}q}r}") << "the last message is not supervised";
}

TEST(DocumentTest, NothingToTrainOnGivesNoTokens) {
  EXPECT_THAT(FromJson(R"({"text": ""})").tokens, IsEmpty());
  EXPECT_THAT(FromJson(R"({"messages": []})").tokens, IsEmpty());
}

TEST(DocumentTest, ErrorsNameTheColumnAndWhatIsWrong) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"({"text": "a)", {"column 12: "}},
      {R"({"text": "a" "b"})", {"column 16: "}},
      {"{\"text\": \"\xff\"}", {"column 11: ", "UTF-8"}},
      {R"(  [1])", {"column 3: ", "no object but array"}},
      {R"({})", {"column 1: ", "neither"}},
      {R"({"text": "a", "messages": []})", {"both"}},
      {R"({"text": 1})", {"\"text\" is no string"}},
      {R"({"text": "a", "loss_ranges": 3})", {"\"loss_ranges\" is no array"}},
      {R"({"text": "a", "loss_ranges": [[0,1],[0]]})", {"loss_ranges[1] is [0]"}},
      {R"({"text": "a", "loss_ranges": [[-1,1]]})", {"loss_ranges[0] is [-1,1]"}},
      {R"({"text": "\u00e9", "loss_ranges": [[0,2]]})", {"[0, 2) in a text of 1 characters"}},
      {R"({"text": "abc", "loss_ranges": [[2,1]]})", {"[2, 1)"}},
      {R"({"messages": {}})", {"\"messages\" is no array"}},
      {R"({"messages": [{"role": "user"}]})", {"messages[0] has no string \"content\""}},
      {R"({"messages": [{"role": "u", "content": ""}, 7]})", {"messages[1]", "\"role\""}},
  };
  for (const auto& [line, parts] : cases) {
    const absl::Status status = DocumentFromJson(line, Roles()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << line;
    }
  }
}

std::vector<std::string> Split(const std::string& text, int64_t cap) {
  Document document;
  ByteTokenizer::Append(text, document.tokens);
  std::vector<std::string> pieces;
  for (const Document& piece : SplitDocument(std::move(document), cap)) {
    EXPECT_LE(static_cast<int64_t>(piece.tokens.size()), cap);
    pieces.push_back(ByteTokenizer::Decode(piece.tokens));
  }
  return pieces;
}

TEST(SplitDocumentTest, KeepsWhatFits) {
  EXPECT_EQ(Split(std::string(20, 'a'), 20), std::vector<std::string>{std::string(20, 'a')});
}

TEST(SplitDocumentTest, CutsBehindALineEndInTheLastTenth) {
  std::string text(200, 'a');
  text[89] = '\n';  // a piece of 90: exactly at the tenth
  EXPECT_EQ(Split(text, 100)[0].size(), 90u);
  text[95] = '\n';
  EXPECT_EQ(Split(text, 100)[0].size(), 96u) << "the last one is taken";
}

TEST(SplitDocumentTest, PrefersABlankLineAndIgnoresEarlyOnes) {
  std::string text(200, 'a');
  text[91] = text[92] = '\n';
  text[97] = '\n';
  EXPECT_EQ(Split(text, 100)[0].size(), 93u);
  text.assign(200, 'a');
  text[50] = '\n';
  EXPECT_EQ(Split(text, 100)[0].size(), 100u);
}

TEST(SplitDocumentTest, DoesNotCutWithinACharacter) {
  std::string text;
  while (text.size() < 200) text += "\xf0\x9f\x98\x80";
  for (const int64_t cap : {16, 17, 18, 19}) {
    for (const std::string& piece : Split(text, cap)) EXPECT_EQ(piece.size() % 4, 0u) << cap;
  }
  EXPECT_EQ(Split(std::string(40, '\x80'), 16)[0].size(), 16u) << "no UTF-8: cut anywhere";
}

TEST(SplitDocumentTest, LosesNothingAndSplitsTheMaskAlike) {
  Document document;
  for (int32_t i = 0; i < 1000; ++i) {
    document.tokens.push_back(i % 7 == 0 ? '\n' : i % 256);
    document.mask.push_back(i % 3 == 0 ? 1 : 0);
  }
  Document joined;
  for (const Document& piece : SplitDocument(document, 33)) {
    EXPECT_EQ(piece.tokens.size(), piece.mask.size());
    EXPECT_LE(piece.tokens.size(), 33u);
    EXPECT_FALSE(piece.tokens.empty());
    joined.tokens.insert(joined.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    joined.mask.insert(joined.mask.end(), piece.mask.begin(), piece.mask.end());
  }
  EXPECT_EQ(joined.tokens, document.tokens);
  EXPECT_EQ(joined.mask, document.mask);
}

}  // namespace
}  // namespace sparsebalance::data
