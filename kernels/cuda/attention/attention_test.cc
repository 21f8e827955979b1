#include "kernels/cuda/attention/attention.h"

#include <cstdint>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/attention_test_util.h"
#include "kernels/cuda/attention/attention_tile.h"

namespace sparsebalance::kernels::cuda {
namespace {

using emulation::Order;

constexpr int64_t kAllHeads = std::numeric_limits<int64_t>::max();

template <typename T>
class AttentionTest : public testing::Test {
 protected:
  ~AttentionTest() override {
    std::cout << "largest normalized mean squared errors: out " << worst_.out << ", lse "
              << worst_.lse << ", gradients " << worst_.grads << "\n";
  }

  // The reference's results, and the same bits in every order.
  void Check(const AttentionCase& c, int64_t scratch_limit = kAllHeads) {
    SCOPED_TRACE(absl::StrCat(c.blocks.tokens(), " tokens in ", c.blocks.sequences(),
                              " sequences, blocks of ", c.blocks.block_tokens, ", ",
                              c.heads.num_heads, " heads of ", c.heads.head_dim, ", ",
                              c.heads.num_kv_heads, " KV heads"));
    const AttentionResults<T> forward = RunAttention<T>(Order::kForward, c, scratch_limit);
    ExpectReference(c, forward, worst_);
    ExpectSameBits(RunAttention<T>(Order::kReversed, c, scratch_limit), forward);
    ExpectSameBits(RunAttention<T>(Order::kShuffled, c, scratch_limit), forward);
  }

  WorstErrors worst_;
};

using Elements = testing::Types<float, Bf16>;
class ElementName {
 public:
  template <typename T>
  static std::string GetName(int /*index*/) {
    return std::is_same_v<T, float> ? "Float" : "Bf16";
  }
};
TYPED_TEST_SUITE(AttentionTest, Elements, ElementName);

TYPED_TEST(AttentionTest, EveryLengthAndBudgetAgreesWithTheReference) {
  for (const int64_t length : {1, 15, 16, 17, 63, 64, 65, 127, 129, 255, 257}) {
    const PackedBlocks blocks = Pack({length}, length < 100 ? 16 : 64);
    for (const int64_t budget : {int64_t{1}, int64_t{2}, blocks.blocks(), blocks.blocks() + 3}) {
      SCOPED_TRACE(absl::StrCat("budget ", budget));
      this->Check(MakeCase({1, 1, 32}, blocks, {static_cast<int32_t>(budget)},
                           static_cast<uint32_t>(length * 10 + budget)));
    }
  }
}

TYPED_TEST(AttentionTest, BlocksMayHaveAnySize) {
  this->Check(MakeCase({1, 1, 32}, Pack({40}, 1), {4}, 1));
  this->Check(MakeCase({1, 1, 32}, Pack({71}, 5), {3}, 2));
  this->Check(MakeCase({1, 1, 32}, Pack({230}, 100), {2}, 3));
  this->Check(MakeCase({1, 1, 32}, Pack({300}, 257), {2}, 4));
}

TYPED_TEST(AttentionTest, ProductionHeadsAgreeWithTheReference) {
  this->Check(MakeCase({1, 1, 64}, Pack({257}, 64), {3}, 5));
  this->Check(MakeCase({2, 1, 128}, Pack({200}, 64), {2}, 6));
  this->Check(MakeCase({1, 1, 128}, Pack({290}, 128), {2}, 17));
}

TYPED_TEST(AttentionTest, KvHeadsAreSharedByTheirQueryHeads) {
  this->Check(MakeCase({2, 2, 32}, Pack({90}, 32), {3}, 7));
  this->Check(MakeCase({4, 2, 32}, Pack({90}, 32), {2}, 8));
  this->Check(MakeCase({4, 1, 32}, Pack({90}, 32), {3}, 9));
}

TYPED_TEST(AttentionTest, SequencesOfABatchKeepToThemselvesWhateverTheirLengthsAndBudgets) {
  this->Check(MakeCase({2, 1, 32}, Pack({1, 257, 16, 3, 90}, 32), {3, 4, 1, 2, 100}, 10));
  this->Check(MakeCase({2, 1, 64}, Pack({1}, 128), {5}, 11));
}

TYPED_TEST(AttentionTest, ABlockThatAllQueriesChooseIsSharedOut) {
  // Its list is longer than a query tile, and with all query heads than a segment of a key tile.
  this->Check(MakeCase({4, 1, 32}, Pack({420}, 32), {2}, 12, /*sink=*/true));
}

TYPED_TEST(AttentionTest, OwnQueriesOfManyHeadsAreCutToo) {
  this->Check(MakeCase({8, 1, 32}, Pack({150}, 140), {2}, 13));
}

TYPED_TEST(AttentionTest, RowsMayLieApart) {
  AttentionCase c = MakeCase({2, 1, 32}, Pack({70, 33}, 32), {2, 2}, 14);
  c.shape.q_stride = 136;
  c.shape.kv_stride = 40;
  c.shape.out_stride = 72;
  this->Check(c);
}

TYPED_TEST(AttentionTest, LessScratchTakesMoreRoundsAndGivesTheSameBits) {
  const AttentionCase c = MakeCase({6, 3, 32}, Pack({100, 9}, 32), {3, 2}, 15);
  const AttentionResults<TypeParam> at_once =
      RunAttention<TypeParam>(Order::kForward, c, kAllHeads);
  emulation::Device device;
  const DeviceBlocks blocks = UploadBlocks(device, c.blocks);
  const int64_t pairs = UploadLists(device, c.blocks, c.selection).pairs;
  const auto forward_bytes = [&](int64_t limit) {
    return AttentionForwardScratchBytes<TypeParam>(c.shape, blocks, pairs, limit);
  };
  const auto backward_bytes = [&](int64_t limit) {
    return AttentionBackwardScratchBytes<TypeParam>(c.shape, blocks, pairs, limit);
  };
  for (const int64_t limit : {int64_t{0}, forward_bytes(kAllHeads) / 2,
                              backward_bytes(kAllHeads) / 2, backward_bytes(kAllHeads) - 1}) {
    EXPECT_LE(forward_bytes(limit), std::max(limit, forward_bytes(0)));
    EXPECT_LE(backward_bytes(limit), std::max(limit, backward_bytes(0)));
    EXPECT_LT(backward_bytes(limit), backward_bytes(kAllHeads));
    ExpectSameBits(RunAttention<TypeParam>(Order::kShuffled, c, limit), at_once);
  }
  EXPECT_EQ(6 * forward_bytes(0), forward_bytes(kAllHeads));
}

TYPED_TEST(AttentionTest, TheRoutersListsWorkFromBudgetsToGradients) {
  for (const Order order : emulation::kAllOrders) {
    AttentionCase c = MakeCase({4, 2, 64}, Pack({130, 1, 75}, 16), {1, 1, 1}, 16);
    emulation::Device device({.order = order, .seed = 5});
    const std::vector<int32_t> budgets = {4, 1, 3};
    const DeviceBlocks blocks = UploadBlocks(device, c.blocks);
    const auto means =
        device.Allocate<float>(c.heads.num_kv_heads * c.blocks.blocks() * 64, "means").value();
    const int64_t pairs = SelectedPairs(c.blocks, budgets);
    const auto offsets = device.Allocate<int64_t>(c.blocks.tokens() + 1, "query_offsets").value();
    const auto query_blocks = device.Allocate<int32_t>(4 * pairs, "query_blocks").value();
    const auto block_offsets =
        device.Allocate<int64_t>(4 * (c.blocks.blocks() + 1), "block_offsets").value();
    const auto block_queries = device.Allocate<int32_t>(4 * pairs, "block_queries").value();
    SB_ASSERT_OK(LaunchBlockMeans<TypeParam>(&device, c.shape, blocks,
                                             UploadAs<TypeParam>(device, c.k, "k"), means));
    SB_ASSERT_OK(LaunchQueryOffsets(&device, blocks, Upload(device, budgets, "budgets"), offsets,
                                    Scratch(device, QueryOffsetsScratchBytes(blocks))));
    SB_ASSERT_OK(LaunchSelectBlocks<TypeParam>(&device, c.shape, blocks, kSharedSm80,
                                               UploadAs<TypeParam>(device, c.q, "q"), means,
                                               offsets, pairs, query_blocks, nullptr));
    SB_ASSERT_OK(LaunchBlockLists(&device, 4, blocks, offsets, pairs, query_blocks, block_offsets,
                                  block_queries,
                                  Scratch(device, BlockListsScratchBytes(4, blocks))));
    const AttentionResults<TypeParam> results = RunAttention<TypeParam>(
        device, c, blocks, {pairs, offsets, query_blocks, block_offsets, block_queries}, kAllHeads);

    const std::vector<int64_t> begins = Download(device, offsets, c.blocks.tokens() + 1);
    const std::vector<int32_t> chosen = Download(device, query_blocks, 4 * pairs);
    for (int h = 0; h < 4; ++h) {
      for (int64_t t = 0; t < c.blocks.tokens(); ++t) {
        c.selection[h][t].assign(chosen.begin() + h * pairs + begins[t],
                                 chosen.begin() + h * pairs + begins[t + 1]);
      }
    }
    ExpectReference(c, results, this->worst_);
  }
}

// found[i] is the block of unit i, a warp for each.
SB_GLOBAL void FindBlocks(int64_t blocks, int64_t length, DevicePtr<const int64_t> begins,
                          DevicePtr<int64_t> found) {
  const int64_t block =
      BlockOfUnit(blocks, BlockIdx().x, length, [&](int64_t b) { return begins[b]; });
  if (LaneId() == 0) found[BlockIdx().x] = block;
}

TEST(AttentionUnitsTest, EveryPieceOfEveryListHasAUnitOfItsOwn) {
  std::mt19937 generator(3);
  for (const int64_t blocks : {1, 2, 31, 32, 33, 1025, 2500}) {
    std::vector<int64_t> begins = {0};
    for (int64_t b = 0; b < blocks; ++b) {  // Many empty lists, and a few long ones.
      const int64_t list = generator() % 3 == 0 ? generator() % (b % 100 == 7 ? 3000 : 150) : 0;
      begins.push_back(begins.back() + list);
    }
    constexpr int64_t kLength = 64;
    const int64_t units = ListUnits(begins.back(), blocks, kLength);
    emulation::Device device;
    const auto found = device.Allocate<int64_t>(units, "found").value();
    SB_ASSERT_OK(Launch(FindBlocks, {.grid = {static_cast<unsigned>(units)}, .block = {32}},
                        &device, blocks, kLength, Upload(device, begins, "begins"), found));
    const std::vector<int64_t> got = Download(device, found, units);
    int64_t unit = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t pieces = CeilDiv(begins[b + 1] - begins[b], kLength);
      ASSERT_LE(unit, begins[b] / kLength + b) << "block " << b << " of " << blocks;
      unit = begins[b] / kLength + b;
      for (int64_t i = 0; i < pieces; ++i, ++unit) ASSERT_EQ(got.at(unit), b) << "unit " << unit;
    }
    EXPECT_LE(unit, units);
  }
}

TYPED_TEST(AttentionTest, ShapesAndScratchThatDoNotFitAreRefused) {
  emulation::Device device;
  const DeviceBlocks blocks = UploadBlocks(device, Pack({4}, 16));
  const auto code = [&](const AttentionShape& shape, int64_t bytes, const DeviceLists& lists = {}) {
    const absl::StatusCode forward =
        LaunchAttentionForward<TypeParam>(&device, shape, blocks, lists, nullptr, nullptr, nullptr,
                                          nullptr, nullptr, bytes, nullptr)
            .code();
    EXPECT_EQ(LaunchAttentionBackward<TypeParam>(&device, shape, blocks, lists, {}, bytes, nullptr)
                  .code(),
              forward);
    return forward;
  };
  const int64_t plenty = int64_t{1} << 40;
  AttentionShape apart = Contiguous({2, 1, 64});
  apart.kv_stride = 68;
  AttentionShape overlapping = Contiguous({2, 1, 64});
  overlapping.out_stride = 64;
  for (const AttentionShape& shape : {Contiguous({2, 1, 48}), Contiguous({2, 1, 256}),
                                      Contiguous({3, 2, 64}), apart, overlapping}) {
    EXPECT_EQ(code(shape, plenty), absl::StatusCode::kInvalidArgument);
  }
  const AttentionShape good = Contiguous({2, 1, 64});
  EXPECT_EQ(code(good, AttentionForwardScratchBytes<TypeParam>(good, blocks, 0, 0) - 1),
            absl::StatusCode::kInvalidArgument);
  // More pairs than the scratch holds, and than a grid has tiles.
  DeviceLists endless;
  endless.pairs = int64_t{1} << 40;
  EXPECT_EQ(code(good, plenty, endless), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchAttentionForward<TypeParam>(&device, good, blocks, endless, nullptr, nullptr,
                                              nullptr, nullptr, nullptr, int64_t{1} << 60, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
