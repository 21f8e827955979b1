#include "worker/data/indexed_dataset.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/data_test_util.h"
#include "worker/data/indexed_dataset_builder.h"

namespace sparsebalance::data {
namespace {

using ::sparsebalance::data_testing::ReadFile;
using ::sparsebalance::data_testing::TempFolder;
using ::sparsebalance::data_testing::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Hex(const std::string& digits) {
  std::string bytes;
  std::string pair;
  for (const char c : digits) {
    if (c == ' ') continue;
    pair.push_back(c);
    if (pair.size() == 2) {
      bytes.push_back(static_cast<char>(std::stoi(pair, nullptr, 16)));
      pair.clear();
    }
  }
  return bytes;
}

// Two sequences, (1, 2, 3) and (258, 65535), in two documents, as Megatron writes them in uint16.
const char kIndexHex[] =
    "4d4d494449445800 00"  // MMIDIDX\0\0
    "0100000000000000"     // version
    "08"                   // uint16
    "0200000000000000"     // sequences
    "0300000000000000"     // document index
    "03000000 02000000"
    "0000000000000000 0600000000000000"
    "0000000000000000 0100000000000000 0200000000000000";
const char kBinHex[] = "0100 0200 0300 0201 ffff";

class IndexedDatasetTest : public ::testing::Test {
 protected:
  // Writes index and tokens, opens them.
  absl::StatusOr<IndexedDataset> Open(const std::string& index, const std::string& bin) {
    WriteFile(folder_ / "d.idx", index);
    WriteFile(folder_ / "d.bin", bin);
    return IndexedDataset::Open(folder_ / "d");
  }

  // The pinned index with `bytes` in place of those at `offset`.
  static std::string Patched(size_t offset, const std::string& bytes) {
    std::string index = Hex(kIndexHex);
    index.replace(offset, bytes.size(), bytes);
    return index;
  }

  void ExpectRefused(const std::string& index, const std::string& bin, absl::StatusCode code,
                     const std::string& message) {
    const absl::StatusOr<IndexedDataset> dataset = Open(index, bin);
    EXPECT_EQ(dataset.status().code(), code) << dataset.status();
    EXPECT_THAT(std::string(dataset.status().message()), HasSubstr(message));
  }

  TempFolder folder_;
};

TEST_F(IndexedDatasetTest, ReadsBytesWrittenByHand) {
  auto dataset = Open(Hex(kIndexHex), Hex(kBinHex));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->size(), 2u);
  EXPECT_EQ(dataset->total_tokens(), 5);
  EXPECT_EQ(dataset->token_type(), TokenType::kUint16);
  EXPECT_EQ(*dataset->length(0), 3);
  EXPECT_THAT(*dataset->Tokens(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(*dataset->Tokens(1), ElementsAre(258, 65535));
  EXPECT_THAT(*dataset->Mask(0), ElementsAre(1, 1, 1));
  EXPECT_EQ(*dataset->supervised_tokens(0), 3);
  EXPECT_FALSE(dataset->metadata().has_value());
  EXPECT_TRUE(dataset->Verify().ok());
}

TEST_F(IndexedDatasetTest, BuilderWritesTheSameBytes) {
  auto builder = IndexedDatasetBuilder::Create(folder_ / "d", TokenType::kUint16, {});
  ASSERT_TRUE(builder.ok()) << builder.status();
  ASSERT_TRUE(builder->Add(std::vector<int32_t>{1, 2, 3}).ok());
  builder->EndDocument();
  ASSERT_TRUE(builder->Add(std::vector<int32_t>{258, 65535}).ok());
  ASSERT_TRUE(builder->Finalize(std::nullopt).ok());
  EXPECT_EQ(ReadFile(folder_ / "d.idx"), Hex(kIndexHex));
  EXPECT_EQ(ReadFile(folder_ / "d.bin"), Hex(kBinHex));
  EXPECT_EQ(folder_.entries(), 2u);
}

TEST_F(IndexedDatasetTest, MaskFileIsPinnedToo) {
  auto builder = IndexedDatasetBuilder::Create(folder_ / "d", TokenType::kUint16, {});
  ASSERT_TRUE(builder.ok()) << builder.status();
  // Ten tokens: 1 1 1 1 1 1 1 0 | 1 0.
  ASSERT_TRUE(builder->Add(std::vector<int32_t>(7, 5)).ok());
  ASSERT_TRUE(builder->Add(std::vector<int32_t>{6, 7, 8}, std::vector<uint8_t>{0, 1, 0}).ok());
  ASSERT_TRUE(builder->Finalize(std::nullopt).ok());
  EXPECT_EQ(ReadFile(folder_ / "d.mask"), Hex("53424c4d41534b00 0100000000000000"
                                              "0200000000000000 0a00000000000000 7f 01"));
}

TEST_F(IndexedDatasetTest, ReadsEveryIntegerType) {
  struct Case {
    std::string code;
    std::string bin;
    int bytes;
    int32_t last;
  };
  const std::vector<Case> cases = {
      {"01", "01 02 03 04 ff", 1, 255},
      {"02", "01 02 03 04 7f", 1, 127},
      {"03", "0100 0200 0300 0400 ff7f", 2, 32767},
      {"08", "0100 0200 0300 0400 ffff", 2, 65535},
      {"04", "01000000 02000000 03000000 04000000 ffffff7f", 4, 2147483647},
      {"05", "0100000000000000 0200000000000000 0300000000000000 0400000000000000 ffffff7f00000000",
       8, 2147483647}};
  for (const Case& c : cases) {
    std::string index = Patched(17, Hex(c.code));
    index[50] = static_cast<char>(3 * c.bytes);  // second pointer
    auto dataset = Open(index, Hex(c.bin));
    ASSERT_TRUE(dataset.ok()) << c.code << ": " << dataset.status();
    EXPECT_THAT(*dataset->Tokens(0), ElementsAre(1, 2, 3)) << c.code;
    EXPECT_THAT(*dataset->Tokens(1), ElementsAre(4, c.last)) << c.code;
  }
}

TEST_F(IndexedDatasetTest, SaysWhichTokenIsNoTokenId) {
  std::string index = Patched(17, Hex("02"));
  index[50] = 3;
  auto dataset = Open(index, Hex("01 02 03 04 ff"));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const absl::Status status = dataset->Tokens(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 1 of sequence 1 is -1"));
  EXPECT_EQ(dataset->Verify().code(), absl::StatusCode::kDataLoss);
}

TEST_F(IndexedDatasetTest, RefusesEachKindOfDamageByName) {
  const std::string index = Hex(kIndexHex);
  const std::string bin = Hex(kBinHex);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kLoss = absl::StatusCode::kDataLoss;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  ExpectRefused(index, bin.substr(0, 9), kLoss, "sequence 1 of 2 tokens begins at byte 6");
  ExpectRefused(index, "", kLoss, "has 0 bytes");
  ExpectRefused("", bin, kLoss, "truncated, 0 bytes");
  ExpectRefused(index.substr(0, 20), bin, kLoss, "truncated, 20 bytes");
  ExpectRefused(index.substr(0, index.size() - 1), bin, kLoss, "truncated, 81 bytes");
  ExpectRefused(index + "x", bin, kLoss, "1 bytes more");
  ExpectRefused(index + Hex("00 00"), bin, kUnimplemented, "multimodal");
  ExpectRefused(Patched(0, "X"), bin, kInvalid, "MMIDIDX");
  ExpectRefused(Patched(9, Hex("02")), bin, kInvalid, "version 2");
  ExpectRefused(Patched(17, Hex("06")), bin, kUnimplemented, "float64");
  ExpectRefused(Patched(17, Hex("07")), bin, kUnimplemented, "float32");
  ExpectRefused(Patched(17, Hex("09")), bin, kInvalid, "dtype code is 9");
  ExpectRefused(Patched(17, Hex("00")), bin, kInvalid, "dtype code is 0");
  ExpectRefused(Patched(18, Hex("ffffffffffffffff")), bin, kLoss, "truncated");
  ExpectRefused(Patched(26, Hex("ffffffffffffff1f")), bin, kLoss, "truncated");
  ExpectRefused(Patched(34, Hex("ffffffff")), bin, kLoss, "sequence 0 has the negative size -1");
  ExpectRefused(Patched(50, Hex("05")), bin, kLoss, "byte 5, which is no multiple of 2");
  ExpectRefused(Patched(50, Hex("feffffffffffffff")), bin, kLoss, "byte -2");
  ExpectRefused(Patched(50, Hex("f0ffffffffffff7f")), bin, kLoss, "sequence 1 of 2 tokens");
  ExpectRefused(Patched(66, Hex("03")), bin, kLoss, "document 1 begins at sequence 3 of 2");
  ExpectRefused(Patched(74, Hex("01")), bin, kLoss, "ends at sequence 1");
  ExpectRefused(Patched(58, Hex("01")), bin, kLoss, "document 0 begins at sequence 1");
}

TEST_F(IndexedDatasetTest, NamesTheFileThatIsMissing) {
  const absl::Status status = IndexedDataset::Open(folder_ / "none").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none.idx"));
}

TEST_F(IndexedDatasetTest, RefusesMasksThatDoNotBelong) {
  const std::string good =
      Hex("53424c4d41534b00 0100000000000000 0200000000000000 0500000000000000 1f");
  const auto patched = [&](size_t offset, char value) {
    std::string mask = good;
    mask[offset] = value;
    return mask;
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no mask file"},         {patched(0, 'X'), "no mask file"},
      {patched(8, 2), "version 2"}, {patched(16, 3), "3 sequences"},
      {patched(24, 6), "6 tokens"}, {good.substr(0, 32), "has 32 bytes"},
      {good + "x", "has 34 bytes"}, {patched(32, 0x3f), "bits after the last token"},
  };
  for (const auto& [mask, message] : cases) {
    WriteFile(folder_ / "d.mask", mask);
    const absl::Status status = Open(Hex(kIndexHex), Hex(kBinHex)).status();
    EXPECT_FALSE(status.ok()) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  WriteFile(folder_ / "d.mask", good);
  EXPECT_TRUE(Open(Hex(kIndexHex), Hex(kBinHex)).ok());
}

TEST_F(IndexedDatasetTest, LossWeightAtAPositionIsTheMaskOfTheNextToken) {
  WriteFile(folder_ / "d.mask",  // 1 0 1 | 0 1
            Hex("53424c4d41534b00 0100000000000000 0200000000000000 0500000000000000 15"));
  auto dataset = Open(Hex(kIndexHex), Hex(kBinHex));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  auto example = dataset->MakeTrainingExample(0);
  ASSERT_TRUE(example.ok()) << example.status();
  EXPECT_THAT(example->tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(example->targets, ElementsAre(2, 3, 0));
  EXPECT_THAT(example->loss_weights, ElementsAre(0, 1, 0));
  EXPECT_THAT(*dataset->Mask(0), ElementsAre(1, 0, 1));
  EXPECT_EQ(*dataset->supervised_tokens(0), 2);   // the first counts as a token
  EXPECT_EQ(*dataset->supervised_targets(0), 1);  // but nothing predicts it
  example = dataset->MakeTrainingExample(1);
  ASSERT_TRUE(example.ok()) << example.status();
  EXPECT_THAT(example->loss_weights, ElementsAre(1, 0));
  EXPECT_EQ(*dataset->supervised_targets(1), 1);
}

TEST_F(IndexedDatasetTest, IdsAreBoundsChecked) {
  auto dataset = Open(Hex(kIndexHex), Hex(kBinHex));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  for (const absl::Status& status :
       {dataset->length(2).status(), dataset->Tokens(2).status(), dataset->Mask(2).status(),
        dataset->supervised_tokens(2).status(), dataset->supervised_targets(2).status(),
        dataset->MakeTrainingExample(2).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("no sequence 2; ids are in [0, 2)"));
  }
}

TEST_F(IndexedDatasetTest, RoundTripsManySequencesWithMasks) {
  auto builder = IndexedDatasetBuilder::Create(folder_ / "r", TokenType::kInt32, {});
  ASSERT_TRUE(builder.ok()) << builder.status();
  std::vector<std::vector<int32_t>> tokens(100);
  std::vector<std::vector<uint8_t>> masks(100);
  uint32_t state = 1;
  const auto next = [&state] { return state = state * 1664525 + 1013904223; };
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t n = i * 13 % 41;  // 0 among them
    for (size_t t = 0; t < n; ++t) {
      tokens[i].push_back(static_cast<int32_t>(next() >> 1));
      // Whole sequences of ones first: the mask file begins late.
      masks[i].push_back(i < 10 ? 1 : next() >> 31);
    }
    ASSERT_TRUE(builder->Add(tokens[i], masks[i]).ok());
    if (i % 3 == 0) builder->EndDocument();
  }
  ASSERT_TRUE(builder->Finalize(std::nullopt).ok());
  auto dataset = IndexedDataset::Open(folder_ / "r");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE(dataset->has_mask());
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(*dataset->Tokens(i), tokens[i]);
    EXPECT_EQ(*dataset->Mask(i), masks[i]);
    auto example = dataset->MakeTrainingExample(i);
    ASSERT_TRUE(example.ok());
    EXPECT_EQ(std::count(masks[i].begin(), masks[i].end(), 1), *dataset->supervised_tokens(i));
    EXPECT_EQ(std::count(example->loss_weights.begin(), example->loss_weights.end(), 1.0f),
              *dataset->supervised_targets(i));
  }
}

TEST_F(IndexedDatasetTest, BuilderRefusesWhatTheFormatCannotHold) {
  auto builder = IndexedDatasetBuilder::Create(folder_ / "b", TokenType::kUint16, {});
  ASSERT_TRUE(builder.ok()) << builder.status();
  using Tokens = std::vector<int32_t>;
  using Mask = std::vector<uint8_t>;
  EXPECT_THAT(std::string(builder->Add(Tokens{1, 65536}).message()),
              HasSubstr("token 1 of sequence 0 is 65536; uint16 holds 0 to 65535"));
  EXPECT_EQ(builder->Add(Tokens{-1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(builder->Add(Tokens{1, 2}, Mask{1}).message()),
              HasSubstr("2 tokens and a mask of 1"));
  EXPECT_THAT(std::string(builder->Add(Tokens{1}, Mask{2}).message()), HasSubstr("mask 0"));
  // A refused sequence leaves no trace.
  ASSERT_TRUE(builder->Add(Tokens{9}).ok());
  ASSERT_TRUE(builder->Finalize(std::nullopt).ok());
  auto dataset = IndexedDataset::Open(folder_ / "b");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->size(), 1u);
  EXPECT_THAT(*dataset->Tokens(0), ElementsAre(9));
}

TEST_F(IndexedDatasetTest, UnfinishedBuilderLeavesNothingBehind) {
  {
    auto builder = IndexedDatasetBuilder::Create(folder_ / "b", TokenType::kUint16, {});
    ASSERT_TRUE(builder.ok()) << builder.status();
    ASSERT_TRUE(builder->Add(std::vector<int32_t>{1}, std::vector<uint8_t>{0}).ok());
    EXPECT_GT(folder_.entries(), 0u);
    EXPECT_EQ(IndexedDataset::Open(folder_ / "b").status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(folder_.entries(), 0u);
}

TEST_F(IndexedDatasetTest, ReplacesADatasetOnlyWhenAsked) {
  const auto build = [&](bool overwrite, uint8_t mask) -> absl::Status {
    auto builder = IndexedDatasetBuilder::Create(folder_ / "b", TokenType::kUint16, {overwrite});
    if (!builder.ok()) return builder.status();
    absl::Status status = builder->Add(std::vector<int32_t>{7}, std::vector<uint8_t>{mask});
    return status.ok() ? builder->Finalize(std::nullopt) : status;
  };
  ASSERT_TRUE(build(false, 0).ok());
  EXPECT_EQ(build(false, 1).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(build(true, 1).ok());
  auto dataset = IndexedDataset::Open(folder_ / "b");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_FALSE(dataset->has_mask()) << "the old dataset's mask must be gone";
}

TEST_F(IndexedDatasetTest, FingerprintTellsDatasetsApartAndNothingElse) {
  const auto build = [&](const std::string& name, int32_t token, uint8_t mask,
                         int64_t vocabulary) -> uint64_t {
    auto builder = IndexedDatasetBuilder::Create(folder_ / name, TokenType::kUint16, {});
    EXPECT_TRUE(builder.ok());
    EXPECT_TRUE(builder->Add(std::vector<int32_t>{1, token}, std::vector<uint8_t>{1, mask}).ok());
    EXPECT_TRUE(builder->Finalize(DatasetMetadata{"t", vocabulary, {}, {}, ""}).ok());
    auto dataset = IndexedDataset::Open(folder_ / name);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset->fingerprint();
  };
  const uint64_t first = build("a", 2, 1, 10);
  EXPECT_EQ(build("same", 2, 1, 10), first);
  EXPECT_NE(build("token", 3, 1, 10), first);
  EXPECT_NE(build("mask", 2, 0, 10), first);
  EXPECT_NE(build("vocabulary", 2, 1, 11), first);
  auto foreign = Open(Hex(kIndexHex), Hex(kBinHex));
  ASSERT_TRUE(foreign.ok());
  EXPECT_EQ(foreign->fingerprint(), 0x4b487aabd7ffbc4du);  // pinned
}

TEST_F(IndexedDatasetTest, MetadataBoundsTokensAndProvesThemUnchanged) {
  auto builder = IndexedDatasetBuilder::Create(folder_ / "m", TokenType::kUint16, {});
  ASSERT_TRUE(builder.ok());
  ASSERT_TRUE(builder->Add(std::vector<int32_t>{1, 2, 3}).ok());
  ASSERT_TRUE(builder->Finalize(DatasetMetadata{"t", 4, {{"files", 1}}, {{"a", "b"}}, ""}).ok());
  {
    auto dataset = IndexedDataset::Open(folder_ / "m");
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ(dataset->metadata()->counts.at("files"), 1);
    EXPECT_EQ(dataset->metadata()->parameters.at("a"), "b");
    EXPECT_TRUE(dataset->Verify().ok());
  }
  WriteFile(folder_ / "m.bin", Hex("0100 0200 0200"));
  auto changed = IndexedDataset::Open(folder_ / "m");
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(std::string(changed->Verify().message()), HasSubstr("SHA-256"));
  WriteFile(folder_ / "m.bin", Hex("0100 0200 0400"));
  auto foreign = IndexedDataset::Open(folder_ / "m");
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  EXPECT_THAT(std::string(foreign->Tokens(0).status().message()), HasSubstr("[0, 4)"));
  WriteFile(folder_ / "m.json", "{\"format\": ");
  EXPECT_THAT(std::string(IndexedDataset::Open(folder_ / "m").status().message()),
              HasSubstr("m.json"));
}

TEST_F(IndexedDatasetTest, OpensAnEmptyDataset) {
  auto builder = IndexedDatasetBuilder::Create(folder_ / "e", TokenType::kUint16, {});
  ASSERT_TRUE(builder.ok());
  ASSERT_TRUE(builder->Finalize(std::nullopt).ok());
  auto dataset = IndexedDataset::Open(folder_ / "e");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->size(), 0u);
  EXPECT_THAT(dataset->lengths(), IsEmpty());
}

}  // namespace
}  // namespace sparsebalance::data
