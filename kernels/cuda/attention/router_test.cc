#include "kernels/cuda/attention/router.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

using emulation::Order;
using reference::Heads;
using reference::Tensor;

class RouterTest : public testing::TestWithParam<Order> {
 protected:
  emulation::Device device_{{.order = GetParam(), .seed = 11}};
};

INSTANTIATE_TEST_SUITE_P(Orders, RouterTest, testing::ValuesIn(emulation::kAllOrders),
                         emulation::OrderName);

constexpr int64_t kOddLengths[] = {1, 15, 16, 17, 63, 64, 65, 127, 129, 255, 257};

Tensor ReferenceMeans(const Heads& heads, const PackedBlocks& blocks, const Tensor& k) {
  Tensor means;
  for (int h = 0; h < heads.num_kv_heads; ++h) {
    for (int64_t b = 0; b < blocks.blocks(); ++b) {
      for (int d = 0; d < heads.head_dim; ++d) {
        double sum = 0;
        for (int64_t t = blocks.block_begin[b]; t < blocks.block_begin[b + 1]; ++t) {
          sum += k[(t * heads.num_kv_heads + h) * heads.head_dim + d];
        }
        means.push_back(sum / static_cast<double>(blocks.BlockTokens(b)));
      }
    }
  }
  return means;
}

template <typename T>
void ExpectMeans(emulation::Device& device, const Heads& heads, const PackedBlocks& blocks,
                 double nmse_of_rounded, double nmse) {
  const Tensor k = RandomTensor(blocks.tokens() * heads.num_kv_heads * heads.head_dim, 3);
  const int64_t size = heads.num_kv_heads * blocks.blocks() * heads.head_dim;
  const auto means = device.Allocate<float>(size, "means").value();
  SB_ASSERT_OK(LaunchBlockMeans<T>(&device, Contiguous(heads), UploadBlocks(device, blocks),
                                   UploadAs<T>(device, k, "k"), means));
  const std::string what =
      absl::StrCat(blocks.tokens(), " tokens in blocks of ", blocks.block_tokens);
  const std::vector<float> got = Download(device, means, size);
  ExpectClose(got, ReferenceMeans(heads, blocks, Rounded<T>(k)), what, nmse_of_rounded);
  ExpectClose(got, ReferenceMeans(heads, blocks, k), what, nmse, /*max_error=*/1e-2);
}

TEST_P(RouterTest, BlockMeansAreTheReferencesForOddSizesAndDimensions) {
  for (const int64_t length : kOddLengths) {
    for (const int block_tokens : {16, 64, 128}) {
      const PackedBlocks blocks = Pack({length}, block_tokens);
      ExpectMeans<float>(device_, {2, 2, 64}, blocks, 1e-10, 1e-10);
      ExpectMeans<Bf16>(device_, {2, 2, 64}, blocks, 1e-10, 5e-4);
    }
  }
  for (const int head_dim : {8, 24, 128, 200, 256}) {
    ExpectMeans<float>(device_, {4, 1, head_dim}, Pack({1, 257, 30}, 64), 1e-10, 1e-10);
    ExpectMeans<Bf16>(device_, {4, 1, head_dim}, Pack({1, 257, 30}, 64), 1e-10, 5e-4);
  }
}

// Budgets 1, 2, all blocks and more than there are, for one sequence.
std::vector<int32_t> Budgets(int64_t blocks) {
  std::vector<int32_t> budgets = {1, 2, 5, static_cast<int32_t>(blocks),
                                  static_cast<int32_t>(blocks + 3)};
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  return budgets;
}

std::vector<int32_t> Flat(const reference::Selection& selection) {
  std::vector<int32_t> out;
  for (const auto& head : selection) {
    for (const auto& query : head) out.insert(out.end(), query.begin(), query.end());
  }
  return out;
}

// Whole numbers, and every third block's keys are those of the block before: sums are exact, so
// the kernels must agree with both others to the last block, ties included.
template <typename T>
void ExpectExactSelection(emulation::Device& device, const Heads& heads, const PackedBlocks& blocks,
                          const std::vector<int32_t>& budgets, int64_t shared_limit = kSharedSm90) {
  const int64_t row = heads.num_kv_heads * heads.head_dim;
  const Tensor q = WholeNumbers(blocks.tokens() * heads.num_heads * heads.head_dim, 5, 2);
  Tensor k = WholeNumbers(blocks.tokens() * row, 6, 2);
  for (int64_t b = 2; b < blocks.blocks(); b += 3) {
    const int64_t count = std::min(blocks.BlockTokens(b - 1), blocks.BlockTokens(b)) * row;
    std::copy_n(k.begin() + blocks.block_begin[b - 1] * row, count,
                k.begin() + blocks.block_begin[b] * row);
  }
  const std::string what = absl::StrCat(blocks.tokens(), " tokens, blocks of ", blocks.block_tokens,
                                        ", budget ", budgets[0]);
  const Selected got = Select<T>(device, heads, blocks, q, k, budgets, shared_limit);
  const CpuSelected cpu = SelectOnCpu(heads, blocks, q, k, budgets);
  EXPECT_EQ(got.pairs, cpu.selected.pairs) << what;
  EXPECT_EQ(got.query_offsets, cpu.selected.query_offsets) << what;
  EXPECT_EQ(got.query_blocks, cpu.selected.query_blocks) << what;
  EXPECT_EQ(got.query_blocks, Flat(reference::SelectBlocks(heads, blocks, q, k, budgets))) << what;
}

TEST_P(RouterTest, WholeNumbersAreSelectedExactlyForOddSizesAndAnyBudget) {
  for (const int64_t length : kOddLengths) {
    const PackedBlocks blocks = Pack({length}, 16);
    for (const int32_t budget : Budgets(blocks.blocks())) {
      ExpectExactSelection<float>(device_, {1, 1, 64}, blocks, {budget});
    }
  }
  ExpectExactSelection<float>(device_, {4, 1, 64}, Pack({257}, 64), {2});
  ExpectExactSelection<Bf16>(device_, {4, 4, 128}, Pack({129}, 16), {4});
  ExpectExactSelection<Bf16>(device_, {2, 1, 24}, Pack({500}, 128), {3});
}

TEST_P(RouterTest, SequencesOfVeryDifferentLengthsHaveBudgetsOfTheirOwn) {
  const PackedBlocks blocks = Pack({1, 257, 16, 5, 90}, 16);
  ExpectExactSelection<float>(device_, {4, 1, 64}, blocks, {3, 4, 1, 2, 100});
  ExpectExactSelection<Bf16>(device_, {4, 4, 64}, blocks, {1, 1, 9, 1, 3});
}

TEST_P(RouterTest, TheSelectionDoesNotDependOnWhereScoresAreKept) {
  // Blocks of one token give many of them: more than a tile of means, and more pieces of work than
  // there are thread blocks with scratch.
  const PackedBlocks blocks = Pack({150, 40}, 1);
  const Heads heads{2, 1, 8};
  const int64_t tiles = (int64_t{8} * 36 + int64_t{2} * 64 * 36) * 4;
  ASSERT_EQ(SelectScratchBytes(Contiguous(heads), UploadBlocks(device_, blocks), kSharedSm80), 0);
  const int64_t few = tiles + int64_t{8} * 150 * 4;
  ExpectExactSelection<float>(device_, heads, blocks, {20, 7}, few);
  ASSERT_GT(SelectScratchBytes(Contiguous(heads), UploadBlocks(device_, blocks), few - 4), 0);
  ExpectExactSelection<float>(device_, heads, blocks, {20, 7}, few - 4);
  const PackedBlocks wide = Pack({600}, 16);
  ExpectExactSelection<float>(device_, heads, wide, {9}, tiles + int64_t{8} * 38 * 4);
  ExpectExactSelection<float>(device_, heads, wide, {9}, tiles);
}

// Queries and heads whose selection differs from the CPU's; every difference must be between blocks
// whose scores the rounding of single precision can swap.
template <typename T>
int64_t CountRoundingDifferences(emulation::Device& device, const Heads& heads,
                                 const PackedBlocks& blocks, const std::vector<int32_t>& budgets) {
  const Tensor q = Rounded<T>(RandomTensor(blocks.tokens() * heads.num_heads * heads.head_dim, 21));
  const Tensor k =
      Rounded<T>(RandomTensor(blocks.tokens() * heads.num_kv_heads * heads.head_dim, 22));
  const Selected got = Select<T>(device, heads, blocks, q, k, budgets);
  const Selected cpu = SelectOnCpu(heads, blocks, q, k, budgets).selected;
  EXPECT_EQ(got.query_offsets, cpu.query_offsets);
  const Tensor means = ReferenceMeans(heads, blocks, k);
  int64_t differences = 0;
  for (int h = 0; h < heads.num_heads; ++h) {
    const int kv_head = h / (heads.num_heads / heads.num_kv_heads);
    for (int64_t t = 0; t < blocks.tokens(); ++t) {
      const auto list = [&](const Selected& from, int64_t at) {
        return from.query_blocks.begin() + h * from.pairs + from.query_offsets[at];
      };
      std::vector<int32_t> ours;
      std::vector<int32_t> theirs;
      std::set_difference(list(got, t), list(got, t + 1), list(cpu, t), list(cpu, t + 1),
                          std::back_inserter(ours));
      std::set_difference(list(cpu, t), list(cpu, t + 1), list(got, t), list(got, t + 1),
                          std::back_inserter(theirs));
      if (ours.empty() && theirs.empty()) continue;
      ++differences;
      const auto score = [&](int32_t block, bool absolute) {
        double sum = 0;
        for (int d = 0; d < heads.head_dim; ++d) {
          const double term = q[(t * heads.num_heads + h) * heads.head_dim + d] *
                              means[(kv_head * blocks.blocks() + block) * heads.head_dim + d];
          sum += absolute ? std::abs(term) : term;
        }
        return sum;
      };
      EXPECT_EQ(ours.size(), theirs.size());
      for (const int32_t a : ours) {
        for (const int32_t b : theirs) {
          EXPECT_LE(std::abs(score(a, false) - score(b, false)),
                    heads.head_dim * 1.2e-7 * (score(a, true) + score(b, true)))
              << "head " << h << ", query " << t << ": block " << a << " instead of " << b;
        }
      }
    }
  }
  return differences;
}

TEST_P(RouterTest, RandomScoresAreSelectedAsOnTheCpuButForRounding) {
  int64_t differences = 0;
  int64_t queries = 0;
  const auto run = [&](const Heads& heads, const PackedBlocks& blocks, int32_t budget,
                       auto element) {
    differences += CountRoundingDifferences<decltype(element)>(
        device_, heads, blocks, std::vector<int32_t>(blocks.sequences(), budget));
    queries += heads.num_heads * blocks.tokens();
  };
  run({4, 1, 64}, Pack({257, 1, 129}, 16), 3, 0.0F);
  run({2, 2, 128}, Pack({255, 17}, 16), 8, 0.0F);
  run({4, 4, 64}, Pack({513}, 64), 4, 0.0F);
  run({4, 1, 128}, Pack({257}, 16), 3, Bf16(0.0F));
  run({1, 1, 256}, Pack({700}, 128), 2, Bf16(0.0F));
  std::cout << differences << " of " << queries
            << " selections differ from the CPU's, all within rounding\n";
  RecordProperty("selections_that_differ", static_cast<int>(differences));
  EXPECT_LE(differences, queries / 500);
}

TEST_P(RouterTest, RowsMayLieApartAsInsideOfAFusedProjection) {
  const Heads heads{2, 1, 16};
  const PackedBlocks blocks = Pack({70}, 16);
  const Tensor q = WholeNumbers(70 * 32, 1, 3);
  const Tensor k = WholeNumbers(70 * 16, 2, 3);
  Tensor fused(70 * 64, std::numeric_limits<double>::quiet_NaN());  // q, k and v of each token
  for (int64_t t = 0; t < 70; ++t) {
    std::copy_n(q.begin() + t * 32, 32, fused.begin() + t * 64);
    std::copy_n(k.begin() + t * 16, 16, fused.begin() + t * 64 + 32);
  }
  AttentionShape shape = Contiguous(heads);
  shape.q_stride = shape.kv_stride = 64;
  const DeviceBlocks on_device = UploadBlocks(device_, blocks);
  const DevicePtr<const float> x = UploadAs<float>(device_, fused, "qkv");
  const auto means = device_.Allocate<float>(blocks.blocks() * 16, "means").value();
  SB_ASSERT_OK(LaunchBlockMeans<float>(&device_, shape, on_device, x + 32, means));
  const Selected expected = SelectOnCpu(heads, blocks, q, k, {3}).selected;
  const auto got = device_.Allocate<int32_t>(2 * expected.pairs, "query_blocks").value();
  SB_ASSERT_OK(LaunchSelectBlocks<float>(&device_, shape, on_device, kSharedSm90, x, means,
                                         Upload(device_, expected.query_offsets, "offsets"),
                                         expected.pairs, got, nullptr));
  EXPECT_EQ(Download(device_, got, 2 * expected.pairs), expected.query_blocks);
}

TEST_P(RouterTest, ScoresThatAreNotNumbersStillGiveAscendingPastBlocks) {
  const PackedBlocks blocks = Pack({100}, 16);
  const Heads heads{1, 1, 8};
  Tensor q = RandomTensor(100 * 8, 1);
  for (size_t i = 0; i < q.size(); i += 24) q[i] = std::numeric_limits<double>::quiet_NaN();
  const Selected got = Select<float>(device_, heads, blocks, q, RandomTensor(100 * 8, 2), {3});
  for (int64_t t = 0; t < 100; ++t) {
    for (int64_t i = got.query_offsets[t]; i < got.query_offsets[t + 1]; ++i) {
      EXPECT_LT(got.query_blocks[i], t / 16);
      if (i > got.query_offsets[t]) {
        EXPECT_LT(got.query_blocks[i - 1], got.query_blocks[i]);
      }
    }
  }
}

TEST_P(RouterTest, ShapesThatTheKernelsCannotReadAreRefused) {
  const DeviceBlocks blocks = UploadBlocks(device_, Pack({4}, 16));
  const auto refused = [&](AttentionShape shape) {
    return LaunchBlockMeans<float>(&device_, shape, blocks, nullptr, nullptr).code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(Contiguous({2, 1, 20})));
  EXPECT_TRUE(refused(Contiguous({2, 1, 264})));
  EXPECT_TRUE(refused(Contiguous({3, 2, 64})));
  AttentionShape shape = Contiguous({2, 1, 64});
  shape.kv_stride = 66;
  EXPECT_TRUE(refused(shape));
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
