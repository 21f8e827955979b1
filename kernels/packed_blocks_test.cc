#include "kernels/packed_blocks.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::kernels {
namespace {

using ::testing::ElementsAre;

TEST(PackedBlocksTest, ListsBlocksSequenceAfterSequence) {
  const PackedBlocks blocks = *MakePackedBlocks({0, 6, 7, 11}, 4);
  EXPECT_EQ(blocks.tokens(), 11);
  EXPECT_EQ(blocks.sequences(), 3);
  EXPECT_THAT(blocks.first_block, ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(blocks.block_begin, ElementsAre(0, 4, 6, 7, 11));
  EXPECT_THAT(blocks.block_sequence, ElementsAre(0, 0, 1, 2));
  EXPECT_EQ(blocks.BlockTokens(1), 2);
  EXPECT_EQ(blocks.PastBlocks(1), 1);
  EXPECT_EQ(blocks.PastBlocks(2), 0);
}

TEST(PackedBlocksTest, RefusesEmptySequencesAndBadOffsets) {
  for (const std::vector<int64_t>& bad :
       {std::vector<int64_t>{}, {0}, {1, 2}, {0, 3, 3}, {0, 5, 4}, {0, int64_t{1} << 31}}) {
    EXPECT_EQ(MakePackedBlocks(bad, 4).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MakePackedBlocks({0, 1}, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PackedBlocksTest, TheCoverageGridEndsWithTheNumberOfBlocks) {
  EXPECT_THAT(CoverageGrid(1), ElementsAre(1));
  EXPECT_THAT(CoverageGrid(2), ElementsAre(1, 2));
  EXPECT_THAT(CoverageGrid(4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(CoverageGrid(5), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(CoverageGrid(50), ElementsAre(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 50));
}

TEST(PackedBlocksTest, CoverageIsInterpolatedLinearly) {
  const std::vector<double> curve = {0, 0.4, 0.6, 0.8, 0.9, 1.0};  // at 1, 2, 3, 4, 6, 7
  EXPECT_DOUBLE_EQ(InterpolateCoverage(7, curve, 1), 0.0);
  EXPECT_DOUBLE_EQ(InterpolateCoverage(7, curve, 4), 0.8);
  EXPECT_DOUBLE_EQ(InterpolateCoverage(7, curve, 5), 0.85);
  EXPECT_DOUBLE_EQ(InterpolateCoverage(7, curve, 7), 1.0);
  EXPECT_DOUBLE_EQ(InterpolateCoverage(7, curve, 100), 1.0);
  EXPECT_DOUBLE_EQ(InterpolateCoverage(7, curve, 0), 0.0);
}

TEST(PackedBlocksTest, AttendedPairsCountTokensOfOwnAndSelectedBlocks) {
  EXPECT_EQ(AttendedPairs(3, 4, 1), 6);
  EXPECT_EQ(AttendedPairs(8, 4, 1), 20);
  EXPECT_EQ(AttendedPairs(8, 4, 2), 36);    // dense: 8 * 9 / 2
  EXPECT_EQ(AttendedPairs(10, 4, 99), 55);  // dense: 10 * 11 / 2
  EXPECT_EQ(AttendedPairs(10, 4, 2), 10 + 10 + 3 + 16 + 8);
}

}  // namespace
}  // namespace sparsebalance::kernels
