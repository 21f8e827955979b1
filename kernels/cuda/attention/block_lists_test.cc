#include "kernels/cuda/attention/block_lists.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/block_index.h"
#include "kernels/cuda/attention/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

using emulation::Order;

class BlockListsTest : public testing::TestWithParam<Order> {
 protected:
  // Makes offsets from the budgets, and both lists of a random selection; compares with the loops
  // that the CPU backend runs.
  void Check(const PackedBlocks& blocks, const std::vector<int32_t>& budgets, int heads) {
    SCOPED_TRACE(absl::StrCat(blocks.tokens(), " tokens in ", blocks.sequences(),
                              " sequences, blocks of ", blocks.block_tokens, ", budget ",
                              budgets[0]));
    const DeviceBlocks on_device = UploadBlocks(device_, blocks);
    std::vector<int64_t> offsets(blocks.tokens() + 1);
    FillQueryOffsets(blocks.block_begin.data(), blocks.block_sequence.data(),
                     blocks.first_block.data(), blocks.blocks(), budgets.data(), offsets.data());
    const int64_t pairs = offsets.back();
    EXPECT_EQ(SelectedPairs(blocks, budgets), pairs);
    const auto got_offsets = device_.Allocate<int64_t>(blocks.tokens() + 1, "offsets").value();
    SB_ASSERT_OK(LaunchQueryOffsets(&device_, on_device, Upload(device_, budgets, "budgets"),
                                    got_offsets,
                                    Scratch(device_, QueryOffsetsScratchBytes(on_device))));
    EXPECT_EQ(Download(device_, got_offsets, blocks.tokens() + 1), offsets);

    const std::vector<int32_t> query_blocks = RandomSelection(blocks, offsets, heads);
    std::vector<int64_t> block_offsets(heads * (blocks.blocks() + 1));
    std::vector<int32_t> block_queries(heads * pairs);
    std::vector<int64_t> cursor(blocks.blocks());
    for (int h = 0; h < heads; ++h) {
      int64_t* own = block_offsets.data() + h * (blocks.blocks() + 1);
      CountAndScan(query_blocks.data() + h * pairs, pairs, blocks.blocks(), own);
      StableFill(offsets.data(), query_blocks.data() + h * pairs, blocks.tokens(), blocks.blocks(),
                 own, cursor.data(), block_queries.data() + h * pairs);
    }
    const auto got_block_offsets =
        device_.Allocate<int64_t>(heads * (blocks.blocks() + 1), "block_offsets").value();
    const auto got_queries = device_.Allocate<int32_t>(heads * pairs, "block_queries").value();
    SB_ASSERT_OK(LaunchBlockLists(&device_, heads, on_device, got_offsets, pairs,
                                  Upload(device_, query_blocks, "query_blocks"), got_block_offsets,
                                  got_queries,
                                  Scratch(device_, BlockListsScratchBytes(heads, on_device))));
    EXPECT_EQ(Download(device_, got_block_offsets, heads * (blocks.blocks() + 1)), block_offsets);
    EXPECT_EQ(Download(device_, got_queries, heads * pairs), block_queries);
  }

  std::vector<int32_t> RandomSelection(const PackedBlocks& blocks,
                                       const std::vector<int64_t>& offsets, int heads) {
    std::vector<int32_t> out;
    for (int h = 0; h < heads; ++h) {
      for (int64_t b = 0; b < blocks.blocks(); ++b) {
        std::vector<int32_t> past(blocks.PastBlocks(b));
        std::iota(past.begin(), past.end(),
                  static_cast<int32_t>(blocks.first_block[blocks.block_sequence[b]]));
        for (int64_t t = blocks.block_begin[b]; t < blocks.block_begin[b + 1]; ++t) {
          std::sample(past.begin(), past.end(), std::back_inserter(out),
                      offsets[t + 1] - offsets[t], generator_);
        }
      }
    }
    return out;
  }

  std::mt19937 generator_{17};
  emulation::Device device_{{.order = GetParam(), .seed = 13}};
};

INSTANTIATE_TEST_SUITE_P(Orders, BlockListsTest, testing::ValuesIn(emulation::kAllOrders),
                         emulation::OrderName);

TEST_P(BlockListsTest, ListsAreTheCpusForOddSizesAndAnyBudget) {
  for (const int64_t length : {1, 15, 16, 17, 63, 64, 65, 127, 129, 255, 257}) {
    for (const int block_tokens : {16, 64, 128}) {
      const PackedBlocks blocks = Pack({length}, block_tokens);
      for (const int64_t budget : {int64_t{1}, int64_t{2}, blocks.blocks(), blocks.blocks() + 2}) {
        Check(blocks, {static_cast<int32_t>(budget)}, 2);
      }
    }
  }
}

TEST_P(BlockListsTest, ListsAreTheCpusForSequencesOfVeryDifferentLengths) {
  Check(Pack({1, 900, 16, 5, 90}, 16), {3, 4, 1, 2, 100}, 4);
  Check(Pack({1, 1, 1}, 16), {3, 1, 2}, 1);
  // A block longer than a step of the fill.
  Check(Pack({700, 513}, 256), {2, 3}, 2);
}

TEST_P(BlockListsTest, MoreSequencesThanThreadsHaveTheirOffsetsInOrder) {
  std::vector<int64_t> lengths;
  std::vector<int32_t> budgets;
  for (int64_t s = 0; s < 600; ++s) {
    lengths.push_back(1 + s * 7 % 11);
    budgets.push_back(static_cast<int32_t>(1 + s % 4));
  }
  Check(Pack(lengths, 4), budgets, 1);
}

TEST_P(BlockListsTest, MorePastBlocksThanAStepTellsApartTakeMoreSteps) {
  Check(Pack({1300}, 1), {6}, 1);
}

TEST_P(BlockListsTest, WrongCountsAreRefused) {
  const DeviceBlocks blocks = UploadBlocks(device_, Pack({4}, 16));
  EXPECT_EQ(
      LaunchBlockLists(&device_, 0, blocks, nullptr, 0, nullptr, nullptr, nullptr, nullptr).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      LaunchBlockLists(&device_, 1, blocks, nullptr, -1, nullptr, nullptr, nullptr, nullptr).code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
