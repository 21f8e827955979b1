#include "worker/data/packer.h"

#include <sys/stat.h>
#include <zlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/data/byte_tokenizer.h"
#include "worker/data/data_test_util.h"
#include "worker/data/dataset_summary.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/input_files.h"

namespace sparsebalance::data {
namespace {

using ::sparsebalance::data_testing::ReadFile;
using ::sparsebalance::data_testing::TempFolder;
using ::sparsebalance::data_testing::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void WriteGzip(const std::string& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

class PackerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(in_ / "sub");
    options_.inputs = {in_.path()};
    options_.output = out_ / "d";
  }

  std::vector<std::string> Texts() {
    std::vector<std::string> texts;
    auto dataset = IndexedDataset::Open(options_.output);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    if (!dataset.ok()) return texts;
    EXPECT_TRUE(dataset->Verify().ok());
    for (uint64_t id = 0; id < dataset->size(); ++id) {
      texts.push_back(ByteTokenizer::Decode(*dataset->Tokens(id)));
    }
    return texts;
  }

  void ExpectError(const std::string& message) {
    const absl::StatusOr<PackReport> report = Pack(options_);
    EXPECT_FALSE(report.ok());
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(message));
    EXPECT_EQ(out_.entries(), 0u) << "nothing may be left behind";
  }

  TempFolder in_;
  TempFolder out_;
  PackOptions options_;
};

TEST_F(PackerTest, WalksFoldersInOrderAndCountsWhatItSkips) {
  WriteFile(in_ / "b.txt", "second");
  WriteFile(in_ / "a.jsonl", "{\"text\": \"first\"}\r\n\n{\"text\": \"\"}\n{\"text\": \"1b\"}");
  WriteFile(in_ / "sub/z.bin", std::string("\0\xff\xfe", 3));
  WriteFile(in_ / "sub/empty.txt", "");
  WriteGzip(in_ / "c.txt.gz", "third");
  WriteGzip(in_ / "d.jsonl.gz", "{\"text\": \"fourth\"}\n");
  WriteGzip(in_ / "e.txt.gz", "");
  std::filesystem::create_symlink(in_ / "b.txt", in_ / "link.txt");
  std::filesystem::create_directory_symlink(in_ / "sub", in_ / "links");
  ASSERT_EQ(mkfifo((in_ / "pipe").c_str(), 0600), 0);
  const absl::StatusOr<PackReport> report = Pack(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(), ElementsAre("first", "1b", "second", "third", "fourth",
                                   std::string("\0\xff\xfe", 3)));
  EXPECT_EQ(report->files, 6);
  EXPECT_EQ(report->documents, 6);
  EXPECT_EQ(report->sequences, 6);
  EXPECT_EQ(report->links_skipped, 2);
  EXPECT_EQ(report->specials_skipped, 1);
  EXPECT_EQ(report->empty_files_skipped, 2);
  EXPECT_EQ(report->empty_documents_skipped, 2);
  auto dataset = IndexedDataset::Open(options_.output);
  EXPECT_FALSE(dataset->has_mask());
  EXPECT_EQ(dataset->metadata()->counts.at("links_skipped"), 2);
  EXPECT_EQ(dataset->metadata()->vocabulary_size, 264);
}

TEST_F(PackerTest, FollowsALinkThatIsNamedItself) {
  WriteFile(in_ / "b.txt", "text");
  std::filesystem::create_symlink(in_ / "b.txt", in_ / "link.txt");
  options_.inputs = {in_ / "link.txt"};
  const absl::StatusOr<PackReport> report = Pack(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->links_skipped, 0);
  EXPECT_THAT(Texts(), ElementsAre("text"));
}

TEST_F(PackerTest, SplitsAtTheCapCountsAndKeepsDocumentsTogether) {
  WriteFile(in_ / "long.txt", std::string(100, 'x'));
  WriteFile(in_ / "short.txt", "y");
  options_.max_tokens = 50;
  const absl::StatusOr<PackReport> report = Pack(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->documents, 2);
  EXPECT_EQ(report->documents_split, 1);
  EXPECT_EQ(report->sequences, 4);
  // 102 tokens with both marks.
  EXPECT_THAT(Texts(), ElementsAre(std::string(49, 'x'), std::string(50, 'x'), "x", "y"));
  auto dataset = IndexedDataset::Open(options_.output);
  EXPECT_EQ(dataset->documents(), 3u);
  EXPECT_EQ(dataset->metadata()->parameters.at("max_tokens"), "50");
}

TEST_F(PackerTest, RefusesWhatIsTooLongByName) {
  WriteFile(in_ / "long.txt", std::string(100, 'x'));
  options_.max_tokens = 101;
  options_.on_too_long = OnTooLong::kRefuse;
  ExpectError("long.txt: has 102 tokens, more than the cap of 101");
}

TEST_F(PackerTest, NamesFileLineAndColumnOfBadJson) {
  WriteFile(in_ / "x.jsonl", "{\"text\": \"a\"}\n\n{\"text\": }\n");
  ExpectError("x.jsonl: line 3, column 10: ");
  WriteFile(in_ / "x.jsonl", "{\"text\": \"a\"}\n {\"txt\": 1}\n");
  ExpectError("x.jsonl: line 2, column 2: ");
}

TEST_F(PackerTest, FormatOverridesTheName) {
  WriteFile(in_ / "x.jsonl", "{\"text\": \"a\"}\n");
  options_.format = InputFormat::kText;
  ASSERT_TRUE(Pack(options_).ok());
  EXPECT_THAT(Texts(), ElementsAre("{\"text\": \"a\"}\n"));
  WriteFile(in_ / "x.jsonl", "plain");
  options_.format = InputFormat::kJsonLines;
  options_.output = out_ / "e";
  EXPECT_THAT(std::string(Pack(options_).status().message()), HasSubstr("line 1, column 1: "));
}

TEST_F(PackerTest, SupervisesRolesInTheMaskFile) {
  WriteFile(
      in_ / "chat.jsonl",
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "tool", "content": "t"}]})");
  options_.supervised_roles = {"tool"};
  ASSERT_TRUE(Pack(options_).ok());
  auto dataset = IndexedDataset::Open(options_.output);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE(dataset->has_mask());
  EXPECT_EQ(*dataset->supervised_targets(0), 3);  // t, the message's end, the document's
  EXPECT_EQ(dataset->metadata()->parameters.at("supervise_roles"), "tool");
}

TEST_F(PackerTest, SameInputGivesTheSameBytesFromAnyFolder) {
  const auto pack_in = [&](const TempFolder& folder, const std::string& name) {
    WriteFile(folder / "b.txt", "text");
    WriteFile(folder / "a.jsonl", R"({"text": "abc", "loss_ranges": [[0, 1]]})");
    PackOptions options = options_;
    options.inputs = {folder.path()};
    options.output = out_ / name;
    EXPECT_TRUE(Pack(options).ok());
  };
  TempFolder other;
  std::filesystem::create_directories(other / "sub");
  pack_in(in_, "one");
  pack_in(other, "two");
  for (const std::string suffix : {".idx", ".bin", ".mask", ".json"}) {
    EXPECT_FALSE(ReadFile(out_ / ("one" + suffix)).empty()) << suffix;
    EXPECT_EQ(ReadFile(out_ / ("one" + suffix)), ReadFile(out_ / ("two" + suffix))) << suffix;
  }
}

TEST_F(PackerTest, RefusesDamagedGzipByName) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += std::to_string(i * 7919);
  WriteGzip(in_ / "x.txt.gz", text);
  const std::string whole = ReadFile(in_ / "x.txt.gz");
  WriteFile(in_ / "x.txt.gz", whole.substr(0, whole.size() / 2));
  ExpectError("x.txt.gz: damaged or cut gzip data");
  std::string flipped = whole;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x55);
  WriteFile(in_ / "x.txt.gz", flipped);
  ExpectError("x.txt.gz: damaged or cut gzip data");
  WriteFile(in_ / "x.txt.gz", "plain text");
  ExpectError("x.txt.gz: is named .gz but holds no gzip data");
}

TEST_F(PackerTest, RefusesMissingInputsEmptyInputsAndBadCaps) {
  ExpectError("the inputs hold no document");
  options_.inputs = {in_ / "absent"};
  ExpectError("absent");
  options_.max_tokens = 15;
  ExpectError("the cap is 15");
}

TEST_F(PackerTest, NamesAnOutputThatCannotBeWritten) {
  WriteFile(in_ / "a.txt", "a");
  options_.output = in_ / "a.txt/d";
  ExpectError("a.txt/d.bin");
}

TEST(InputStreamTest, ReadsLinesAcrossChunksAndRefusesEndlessOnes) {
  TempFolder folder;
  const std::string first(1500000, 'a');
  const std::string second(700000, 'b');
  WriteFile(folder / "lines", first + "\n" + second + "\r\n\nlast");
  auto stream = InputStream::Open(folder / "lines");
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::string line;
  for (const std::string& expected : {first, second, std::string(), std::string("last")}) {
    ASSERT_TRUE(*stream->ReadLine(line, 2000000));
    EXPECT_EQ(line, expected);
  }
  EXPECT_FALSE(*stream->ReadLine(line, 2000000));
  stream = InputStream::Open(folder / "lines");
  EXPECT_EQ(stream->ReadLine(line, 1000000).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PackerTest, SummaryCountsLengthsAndSupervision) {
  WriteFile(in_ / "a.jsonl", R"({"text": "abcd", "loss_ranges": [[0, 2]]})");
  WriteFile(in_ / "b.txt", std::string(98, 'x'));
  ASSERT_TRUE(Pack(options_).ok());
  auto dataset = IndexedDataset::Open(options_.output);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const DatasetSummary summary = Summarize(*dataset, "d");
  EXPECT_EQ(summary.sequences, 2u);
  EXPECT_EQ(summary.documents, 2u);
  EXPECT_EQ(summary.tokens, 106);
  EXPECT_EQ(summary.supervised_targets, 2 + 99);
  EXPECT_DOUBLE_EQ(summary.supervised_share, 101.0 / 104.0);
  EXPECT_THAT(summary.length_quantiles,
              ElementsAre(std::pair(0, 6), std::pair(10, 6), std::pair(50, 6), std::pair(90, 100),
                          std::pair(99, 100), std::pair(100, 100)));
  EXPECT_THAT(SummaryText(summary), HasSubstr("97.12 % of targets (101)"));
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(summary));
  EXPECT_EQ(json["length_quantiles"]["p99"], 100);
  EXPECT_EQ(json["vocabulary_size"], 264);
}

}  // namespace
}  // namespace sparsebalance::data
