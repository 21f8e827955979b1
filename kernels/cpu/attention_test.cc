// Block-sparse attention on the CPU against the masked reference: forward, gradients, selection and
// coverage, over the lengths at which partial blocks, tiles and vectors end.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/test_util.h"

namespace sparsebalance::kernels {
namespace {

using reference::Heads;
using reference::Tensor;

struct Case {
  std::vector<int64_t> lengths;
  std::vector<int32_t> budgets;
  int block_tokens;
  Heads heads;

  std::string Name() const {
    return absl::StrCat("lengths ", absl::StrJoin(lengths, ","), " budgets ",
                        absl::StrJoin(budgets, ","), " block ", block_tokens, " heads ",
                        heads.num_heads, "/", heads.num_kv_heads, "x", heads.head_dim);
  }
};

// Input of one case, and the outputs of the backend. q, k and v lie in one row each, as the model
// has them.
struct Attended {
  PackedBlocks blocks;
  Tensor q, k, v, out_grad;
  std::vector<int32_t> query_blocks, block_queries;
  std::vector<int64_t> query_offsets, block_offsets;
  std::vector<float> out, lse, q_grad, k_grad, v_grad;
  std::vector<std::vector<double>> coverage;
};

// Column range of [tokens, width] as a tensor of its own.
std::vector<float> Columns(const std::vector<float>& x, int64_t width, int64_t begin,
                           int64_t count) {
  std::vector<float> out;
  for (int64_t row = 0; row < static_cast<int64_t>(x.size()) / width; ++row) {
    const auto from = x.begin() + row * width + begin;
    out.insert(out.end(), from, from + count);
  }
  return out;
}

Attended Attend(Backend* backend, const Case& c, double scale = 1.5, int sample_stride = 1) {
  std::vector<int64_t> cu_seqlens = {0};
  for (const int64_t n : c.lengths) cu_seqlens.push_back(cu_seqlens.back() + n);
  Attended r;
  r.blocks = *MakePackedBlocks(cu_seqlens, c.block_tokens);
  const int64_t tokens = r.blocks.tokens();
  const int64_t q_width = static_cast<int64_t>(c.heads.num_heads) * c.heads.head_dim;
  const int64_t kv_width = static_cast<int64_t>(c.heads.num_kv_heads) * c.heads.head_dim;
  const int64_t width = q_width + 2 * kv_width;
  r.q = RandomTensor(tokens * q_width, 1, scale);
  r.k = RandomTensor(tokens * kv_width, 2, scale);
  r.v = RandomTensor(tokens * kv_width, 3);
  r.out_grad = RandomTensor(tokens * q_width, 4);
  Tensor rows(tokens * width);
  for (int64_t t = 0; t < tokens; ++t) {
    auto at = rows.begin() + t * width;
    at = std::copy_n(r.q.begin() + t * q_width, q_width, at);
    at = std::copy_n(r.k.begin() + t * kv_width, kv_width, at);
    std::copy_n(r.v.begin() + t * kv_width, kv_width, at);
  }
  const AttentionShape shape{
      c.heads.num_heads, c.heads.num_kv_heads, c.heads.head_dim, width, width, q_width};
  const DeviceArray<float> qkv_array = ToDevice(backend, rows);
  const DeviceBuffer qkv = qkv_array.span();
  const auto layout = *backend->CreateLayout(r.blocks);
  const DeviceArray<float> means = *backend->Allocate<float>(kv_width * r.blocks.blocks());
  SB_EXPECT_OK(backend->BlockMeans(shape, *layout, qkv.Slice(q_width), means.span()));
  r.coverage = *backend->CoverageCurves(shape, *layout, qkv, means.span(), sample_stride);
  const BlockLists lists = *backend->SelectBlocks(shape, *layout, qkv, means.span(), c.budgets);
  const DeviceArray<float> out = *backend->Allocate<float>(tokens * q_width);
  const DeviceArray<float> lse = *backend->Allocate<float>(tokens * c.heads.num_heads);
  SB_EXPECT_OK(backend->AttentionForward(shape, *layout, lists, qkv, qkv.Slice(q_width),
                                         qkv.Slice(q_width + kv_width), out.span(), lse.span()));
  const DeviceArray<float> out_grad = ToDevice(backend, r.out_grad);
  const DeviceArray<float> grads = *backend->Allocate<float>(tokens * width);
  SB_EXPECT_OK(backend->AttentionBackward(
      shape, *layout, lists, qkv, qkv.Slice(q_width), qkv.Slice(q_width + kv_width), out.span(),
      lse.span(), out_grad.span(), grads.span(), grads.span().Slice(q_width),
      grads.span().Slice(q_width + kv_width)));
  r.query_offsets = ToHost(backend, lists.query_offsets);
  r.query_blocks = ToHost(backend, lists.query_blocks);
  r.block_offsets = ToHost(backend, lists.block_offsets);
  r.block_queries = ToHost(backend, lists.block_queries);
  r.out = ToHost(backend, out);
  r.lse = ToHost(backend, lse);
  const std::vector<float> host_grads = ToHost(backend, grads);
  r.q_grad = Columns(host_grads, width, 0, q_width);
  r.k_grad = Columns(host_grads, width, q_width, kv_width);
  r.v_grad = Columns(host_grads, width, q_width + kv_width, kv_width);
  return r;
}

reference::Selection ListedSelection(const Attended& r, int num_heads) {
  reference::Selection out(num_heads);
  const int64_t pairs = r.query_offsets.back();
  for (int h = 0; h < num_heads; ++h) {
    for (int64_t t = 0; t < r.blocks.tokens(); ++t) {
      const auto begin = r.query_blocks.begin() + h * pairs;
      out[h].emplace_back(begin + r.query_offsets[t], begin + r.query_offsets[t + 1]);
    }
  }
  return out;
}

void ExpectMatchesReference(const Case& c) {
  SCOPED_TRACE(c.Name());
  auto backend = TestBackend();
  const Attended r = Attend(backend.get(), c);
  const reference::Selection selection =
      reference::SelectBlocks(c.heads, r.blocks, r.q, r.k, c.budgets);
  ASSERT_EQ(ListedSelection(r, c.heads.num_heads), selection);
  const reference::Attention forward =
      reference::AttentionForward(c.heads, r.blocks, selection, r.q, r.k, r.v);
  ExpectClose(r.out, forward.out, "out");
  ExpectClose(r.lse, forward.lse, "lse");
  const reference::AttentionGrads grads =
      reference::AttentionBackward(c.heads, r.blocks, selection, r.q, r.k, r.v, r.out_grad);
  ExpectClose(r.q_grad, grads.q, "q_grad");
  ExpectClose(r.k_grad, grads.k, "k_grad");
  ExpectClose(r.v_grad, grads.v, "v_grad");
}

TEST(AttentionTest, EveryLengthAroundABlockMatchesTheReference) {
  for (const int block_tokens : {16, 64}) {
    for (const int64_t n : {1, 15, 16, 17, 63, 64, 65, 127, 129, 255, 257}) {
      const auto blocks = static_cast<int32_t>((n + block_tokens - 1) / block_tokens);
      for (const int32_t budget : {1, 2, 3, blocks, blocks + 5}) {
        ExpectMatchesReference({{n}, {budget}, block_tokens, {2, 1, 8}});
      }
    }
  }
}

TEST(AttentionTest, EveryHeadSizeMatchesTheReference) {
  for (const int head_dim : {2, 6, 16, 24, 32, 64, 80, 128}) {
    ExpectMatchesReference({{100, 1, 37}, {3, 1, 2}, 16, {2, 2, head_dim}});
  }
}

TEST(AttentionTest, EveryGroupingOfHeadsMatchesTheReference) {
  ExpectMatchesReference({{90, 50}, {3, 2}, 16, {6, 1, 8}});
  ExpectMatchesReference({{90, 50}, {3, 2}, 16, {6, 2, 8}});
  ExpectMatchesReference({{90, 50}, {3, 2}, 16, {6, 3, 8}});
  ExpectMatchesReference({{90, 50}, {3, 2}, 16, {6, 6, 8}});
}

TEST(AttentionTest, BlocksThatFillNoVectorMatchTheReference) {
  ExpectMatchesReference({{40, 3}, {4, 2}, 1, {2, 1, 8}});
  ExpectMatchesReference({{40, 11}, {3, 9}, 5, {2, 1, 8}});
  ExpectMatchesReference({{150}, {2}, 48, {2, 1, 8}});
}

TEST(AttentionTest, SequencesOfVeryDifferentLengthMatchTheReference) {
  ExpectMatchesReference(
      {{1, 700, 2, 16, 33, 1, 129, 5}, {1, 4, 1, 2, 2, 9, 3, 1}, 16, {4, 2, 16}});
}

TEST(AttentionTest, TilesAndGroupsOfALongSequenceMatchTheReference) {
  // More queries choose a block than a tile holds, queries fill several chunks, keys several
  // groups.
  ExpectMatchesReference({{1100}, {6}, 16, {1, 1, 128}});
  ExpectMatchesReference({{900, 300}, {12, 2}, 64, {2, 1, 64}});
}

TEST(AttentionTest, ABudgetOfAllBlocksEqualsDenseCausalAttention) {
  auto backend = TestBackend();
  const std::vector<int64_t> lengths = {77, 130, 1};
  const Attended sparse = Attend(backend.get(), {lengths, {5, 9, 1}, 16, {4, 2, 16}});
  // One block as long as the longest sequence: no selection, plain causal attention.
  const Attended dense = Attend(backend.get(), {lengths, {1, 1, 1}, 130, {4, 2, 16}});
  EXPECT_EQ(dense.query_offsets.back(), 0);
  const auto expect_close = [](const std::vector<float>& a, const std::vector<float>& b,
                               const char* what) {
    ExpectClose(a, Tensor(b.begin(), b.end()), what);
  };
  expect_close(sparse.out, dense.out, "out");
  expect_close(sparse.lse, dense.lse, "lse");
  expect_close(sparse.q_grad, dense.q_grad, "q_grad");
  expect_close(sparse.k_grad, dense.k_grad, "k_grad");
  expect_close(sparse.v_grad, dense.v_grad, "v_grad");
}

TEST(AttentionTest, ABudgetOfOneIsTheOwnBlockOnly) {
  auto backend = TestBackend();
  const Attended r = Attend(backend.get(), {{64}, {1}, 16, {2, 1, 8}});
  EXPECT_EQ(r.query_offsets.back(), 0);
  EXPECT_TRUE(r.query_blocks.empty());
  // The same as four sequences of one block each.
  const Attended split = Attend(backend.get(), {{16, 16, 16, 16}, {1, 1, 1, 1}, 16, {2, 1, 8}});
  EXPECT_EQ(r.out, split.out);
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  auto backend = TestBackend();
  const Case c{{200}, {4}, 16, {2, 1, 16}};
  const Attended r = Attend(backend.get(), c, /*scale=*/40.0);
  const reference::Selection selection = ListedSelection(r, 2);
  const auto forward = reference::AttentionForward(c.heads, r.blocks, selection, r.q, r.k, r.v);
  // Scores of several thousand: float keeps about 4 digits of their differences.
  ExpectClose(r.out, forward.out, "out", 1e-5, 1e-2);
}

TEST(AttentionTest, ListsOfBlocksAreTheTransposeOfListsOfQueries) {
  auto backend = TestBackend();
  const Attended r = Attend(backend.get(), {{200, 40, 90}, {3, 2, 4}, 16, {3, 1, 8}});
  const int64_t pairs = r.query_offsets.back();
  const int64_t blocks = r.blocks.blocks();
  for (int64_t h = 0; h < 3; ++h) {
    const int64_t* offsets = r.block_offsets.data() + h * (blocks + 1);
    EXPECT_EQ(offsets[0], 0);
    EXPECT_EQ(offsets[blocks], pairs);
    for (int64_t b = 0; b < blocks; ++b) {
      std::vector<int32_t> expected;
      for (int64_t t = 0; t < r.blocks.tokens(); ++t) {
        for (int64_t i = r.query_offsets[t]; i < r.query_offsets[t + 1]; ++i) {
          if (r.query_blocks[h * pairs + i] == b) expected.push_back(static_cast<int32_t>(t));
        }
      }
      const auto begin = r.block_queries.begin() + h * pairs;
      EXPECT_EQ(std::vector<int32_t>(begin + offsets[b], begin + offsets[b + 1]), expected);
    }
  }
}

TEST(AttentionTest, TiedScoresSelectTheLowerBlock) {
  auto backend = TestBackend();
  const Attended r = Attend(backend.get(), {{96}, {3}, 16, {1, 1, 8}}, /*scale=*/0.0);
  for (int64_t t = 32; t < 96; ++t) {
    EXPECT_EQ(r.query_blocks[r.query_offsets[t]], 0);
    EXPECT_EQ(r.query_blocks[r.query_offsets[t] + 1], 1);
  }
}

TEST(AttentionTest, CoverageMatchesTheReferenceOnAllAndOnSampledQueries) {
  const Case c{{1, 16, 17, 200, 333}, {1, 1, 1, 1, 1}, 16, {4, 2, 8}};
  for (const int stride : {1, 8, 50, 1000}) {
    auto backend = TestBackend();
    const Attended r = Attend(backend.get(), c, /*scale=*/3.0, stride);
    for (int64_t s = 0; s < r.blocks.sequences(); ++s) {
      SCOPED_TRACE(absl::StrCat("sequence ", s, " stride ", stride));
      const std::vector<double> expected =
          reference::CoverageCurve(c.heads, r.blocks, r.q, r.k, s, stride);
      ASSERT_EQ(r.coverage[s].size(), expected.size());
      for (size_t g = 0; g < expected.size(); ++g) {
        EXPECT_NEAR(r.coverage[s][g], expected[g], 1e-6);
      }
    }
  }
}

TEST(AttentionTest, CoverageStartsAtZeroEndsAtOneAndIsMonotoneAndConcave) {
  auto backend = TestBackend();
  const Attended r =
      Attend(backend.get(), {{16, 17, 400, 777}, {1, 1, 1, 1}, 16, {2, 1, 8}}, 3.0, 8);
  EXPECT_EQ(r.coverage[0], std::vector<double>{1.0});
  for (int64_t s = 1; s < 4; ++s) {
    const std::vector<double>& curve = r.coverage[s];
    const std::vector<int64_t> grid = CoverageGrid(r.blocks.SequenceBlocks(s));
    EXPECT_EQ(curve.front(), 0.0);
    EXPECT_EQ(curve.back(), 1.0);
    double slope = 2.0;
    for (size_t g = 1; g < grid.size(); ++g) {
      EXPECT_GE(curve[g], curve[g - 1]);
      const double next = (curve[g] - curve[g - 1]) / static_cast<double>(grid[g] - grid[g - 1]);
      EXPECT_LE(next, slope + 1e-12);
      slope = next;
    }
  }
}

TEST(AttentionTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const Case c{{1500, 1, 300, 64}, {6, 1, 3, 1}, 16, {4, 2, 32}};
  auto one = TestBackend(1);
  const Attended expected = Attend(one.get(), c, 1.5, 8);
  for (const int threads : {2, 3, 7}) {
    auto backend = TestBackend(threads);
    const Attended r = Attend(backend.get(), c, 1.5, 8);
    EXPECT_EQ(r.query_blocks, expected.query_blocks);
    EXPECT_EQ(r.block_queries, expected.block_queries);
    EXPECT_EQ(r.coverage, expected.coverage);
    EXPECT_EQ(r.out, expected.out);
    EXPECT_EQ(r.lse, expected.lse);
    EXPECT_EQ(r.q_grad, expected.q_grad);
    EXPECT_EQ(r.k_grad, expected.k_grad);
    EXPECT_EQ(r.v_grad, expected.v_grad);
  }
}

// By the definition, in double: every key of the past, softmax over all of them.
double TrueMass(const PackedBlocks& blocks, const AttentionShape& shape, const Tensor& q,
                const Tensor& k, const std::vector<int64_t>& query_offsets,
                const std::vector<int32_t>& query_blocks, int64_t pairs, int64_t sequence) {
  double sum = 0;
  double count = 0;
  for (int64_t b = blocks.first_block[sequence] + 1; b < blocks.first_block[sequence + 1]; ++b) {
    for (int64_t t = blocks.block_begin[b]; t < blocks.block_begin[b + 1]; ++t) {
      for (int h = 0; h < shape.num_heads; ++h) {
        const int kv_head = h / (shape.num_heads / shape.num_kv_heads);
        double all = 0;
        double chosen = 0;
        for (int64_t u = blocks.cu_seqlens[sequence]; u < blocks.block_begin[b]; ++u) {
          double dot = 0;
          for (int d = 0; d < shape.head_dim; ++d) {
            dot += q[t * shape.q_stride + h * shape.head_dim + d] *
                   k[u * shape.kv_stride + kv_head * shape.head_dim + d];
          }
          const double weight = std::exp(dot / std::sqrt(shape.head_dim));
          all += weight;
          for (int64_t p = query_offsets[t]; p < query_offsets[t + 1]; ++p) {
            const int32_t block = query_blocks[h * pairs + p];
            if (u >= blocks.block_begin[block] && u < blocks.block_begin[block + 1]) {
              chosen += weight;
            }
          }
        }
        sum += chosen / all;
        count += 1;
      }
    }
  }
  return count == 0 ? 1.0 : sum / count;
}

TEST(AttentionTest, AttentionMassOnChosenBlocksMatchesItsDefinition) {
  const AttentionShape shape{4, 2, 8, 32, 16, 32};
  const PackedBlocks blocks = *MakePackedBlocks({0, 37, 40, 41, 120}, 8);
  const Tensor q = RandomTensor(blocks.tokens() * shape.q_stride, 1, 3.0);
  const Tensor k = RandomTensor(blocks.tokens() * shape.kv_stride, 2, 3.0);
  for (const int threads : {1, 3}) {
    auto backend = TestBackend(threads);
    const auto layout = *backend->CreateLayout(blocks);
    const DeviceArray<float> device_q = ToDevice(backend.get(), q);
    const DeviceArray<float> device_k = ToDevice(backend.get(), k);
    const DeviceArray<float> means = *backend->Allocate<float>(16 * blocks.blocks());
    SB_ASSERT_OK(backend->BlockMeans(shape, *layout, device_k.span(), means.span()));
    for (const int32_t budget : {1, 2, 4, 100}) {
      const BlockLists lists =
          *backend->SelectBlocks(shape, *layout, device_q.span(), means.span(),
                                 std::vector<int32_t>(blocks.sequences(), budget));
      const auto mass = *backend->AttentionMass(shape, *layout, lists, device_q.span(),
                                                device_k.span(), /*queries=*/1000);
      ASSERT_EQ(mass.size(), 4u);
      for (int64_t s = 0; s < 4; ++s) {
        EXPECT_NEAR(mass[s],
                    TrueMass(blocks, shape, q, k, ToHost(backend.get(), lists.query_offsets),
                             ToHost(backend.get(), lists.query_blocks), lists.pairs, s),
                    1e-5)
            << "sequence " << s << ", budget " << budget;
      }
      // One block has no past; of all blocks nothing is missing; of none nothing is there.
      EXPECT_EQ(mass[1], 1.0);
      if (budget == 100) {
        EXPECT_NEAR(mass[0], 1.0, 1e-9);
      }
      if (budget == 1) {
        EXPECT_EQ(mass[0], 0.0);
      }
    }
  }
}

TEST(AttentionTest, AnAuditOfFewQueriesTakesTheLastOfThem) {
  auto backend = TestBackend();
  const AttentionShape shape{1, 1, 4, 4, 4, 4};
  const PackedBlocks blocks = *MakePackedBlocks({0, 24}, 8);
  const auto layout = *backend->CreateLayout(blocks);
  // Keys are alike but for the first block, which only the last query looks at.
  Tensor q(24 * 4, 0.0);
  Tensor k(24 * 4, 0.0);
  for (int t = 0; t < 8; ++t) k[t * 4] = 10.0;
  q[23 * 4] = 10.0;
  const DeviceArray<float> device_q = ToDevice(backend.get(), q);
  const DeviceArray<float> device_k = ToDevice(backend.get(), k);
  const DeviceArray<float> means = *backend->Allocate<float>(4 * blocks.blocks());
  SB_ASSERT_OK(backend->BlockMeans(shape, *layout, device_k.span(), means.span()));
  const BlockLists lists =
      *backend->SelectBlocks(shape, *layout, device_q.span(), means.span(), {2});
  const auto mass =
      *backend->AttentionMass(shape, *layout, lists, device_q.span(), device_k.span(), 1);
  EXPECT_NEAR(mass[0], 1.0, 1e-6);
  EXPECT_EQ(backend->AttentionMass(shape, *layout, lists, device_q.span(), device_k.span(), 0)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(AttentionTest, BadShapesAndBudgetsAreNamed) {
  auto backend = TestBackend();
  const auto layout = *backend->CreateLayout(*MakePackedBlocks({0, 4}, 2));
  const DeviceArray<float> x = ToDevice(backend.get(), Tensor(64, 0.0));
  const auto code = [&](const AttentionShape& shape, const std::vector<int32_t>& budgets) {
    return backend->SelectBlocks(shape, *layout, x.span(), x.span(), budgets).status().code();
  };
  const AttentionShape good{2, 1, 2, 4, 2, 4};
  EXPECT_EQ(code(good, {1}), absl::StatusCode::kOk);
  EXPECT_EQ(code(good, {0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(good, {}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({3, 2, 2, 4, 2, 4}, {1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({2, 1, 2, 400, 2, 4}, {1}), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sparsebalance::kernels
