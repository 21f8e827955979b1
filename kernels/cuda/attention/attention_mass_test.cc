#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

using emulation::Order;

// Masses by the kernels, in one order.
template <typename T>
std::vector<double> Mass(Order order, const AttentionCase& c, int queries) {
  emulation::Device device({.order = order, .seed = 11});
  const DeviceBlocks blocks = UploadBlocks(device, c.blocks);
  const DeviceLists lists = UploadLists(device, c.blocks, c.selection);
  const auto mass = device.Allocate<double>(blocks.sequences, "mass").value();
  SB_EXPECT_OK(LaunchAttentionMass<T>(
      &device, c.shape, blocks, lists,
      UploadRows<T>(device, c.q, c.heads.num_heads * c.heads.head_dim, c.shape.q_stride, "q"),
      UploadRows<T>(device, c.k, c.heads.num_kv_heads * c.heads.head_dim, c.shape.kv_stride, "k"),
      queries, mass, Scratch(device, AttentionMassScratchBytes(c.shape, blocks, queries))));
  return Download(device, mass, blocks.sequences);
}

// The definition, for the sampled tokens that Backend::AttentionMass describes.
std::vector<double> ExpectedMass(const AttentionCase& c, int queries) {
  const PackedBlocks& blocks = c.blocks;
  const int group = c.heads.num_heads / c.heads.num_kv_heads;
  std::vector<double> out;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    if (blocks.SequenceBlocks(s) < 2) {
      out.push_back(1.0);
      continue;
    }
    const int64_t first = blocks.cu_seqlens[s] + blocks.block_tokens;
    const int64_t count = blocks.cu_seqlens[s + 1] - first;
    const int64_t taken = std::min<int64_t>(queries, count);
    double sum = 0;
    for (int h = 0; h < c.heads.num_heads; ++h) {
      for (int64_t i = 1; i <= taken; ++i) {
        const int64_t t = first + i * count / taken - 1;
        const std::vector<int32_t>& chosen = c.selection[h][t];
        double all = 0;
        double on_chosen = 0;
        for (int64_t b = blocks.first_block[s]; blocks.block_begin[b + 1] <= t; ++b) {
          for (int64_t key = blocks.block_begin[b]; key < blocks.block_begin[b + 1]; ++key) {
            double dot = 0;
            for (int d = 0; d < c.heads.head_dim; ++d) {
              dot += c.q[(t * c.heads.num_heads + h) * c.heads.head_dim + d] *
                     c.k[(key * c.heads.num_kv_heads + h / group) * c.heads.head_dim + d];
            }
            const double mass = std::exp(dot / std::sqrt(static_cast<double>(c.heads.head_dim)));
            all += mass;
            if (std::find(chosen.begin(), chosen.end(), b) != chosen.end()) on_chosen += mass;
          }
        }
        sum += on_chosen / all;
      }
    }
    out.push_back(sum / static_cast<double>(taken * c.heads.num_heads));
  }
  return out;
}

template <typename T>
void Check(const AttentionCase& c, int queries) {
  SCOPED_TRACE(absl::StrCat(c.blocks.tokens(), " tokens, ", queries, " queries"));
  const std::vector<double> forward = Mass<T>(Order::kForward, c, queries);
  const std::vector<double> expected = ExpectedMass(c, queries);
  for (int64_t s = 0; s < c.blocks.sequences(); ++s) {
    EXPECT_NEAR(forward[s], expected[s], 2e-6) << "sequence " << s;
  }
  ExpectSameBits(Mass<T>(Order::kReversed, c, queries), forward, "mass reversed");
  ExpectSameBits(Mass<T>(Order::kShuffled, c, queries), forward, "mass shuffled");
}

TEST(AttentionMassTest, SharesAreThoseOfTheTrueSoftmax) {
  const auto check_both = [](const AttentionCase& c, int queries) {
    Check<float>(c, queries);
    Check<Bf16>(c, queries);
  };
  check_both(MakeCase({2, 1, 64}, Pack({257, 1, 40, 16}, 16), {4, 2, 3, 1}, 1), 8);
  check_both(MakeCase({4, 2, 32}, Pack({130}, 64), {2}, 2), 500);
  check_both(MakeCase({1, 1, 128}, Pack({300}, 128), {3}, 3), 1);
  AttentionCase apart = MakeCase({2, 2, 40}, Pack({70}, 16), {2}, 4);
  apart.shape.q_stride = 88;
  apart.shape.kv_stride = 96;
  check_both(apart, 5);
}

TEST(AttentionMassTest, LargeScoresNeitherOverflowNorVanish) {
  AttentionCase c = MakeCase({1, 1, 32}, Pack({90}, 16), {3}, 5);
  for (double& x : c.q) x *= 256;
  Check<float>(c, 20);
}

TEST(AttentionMassTest, ScoresThatAreNotNumbersHaveNoMass) {
  AttentionCase c = MakeCase({1, 1, 32}, Pack({40}, 16), {2}, 6);
  std::fill(c.q.begin(), c.q.end(), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Mass<float>(Order::kForward, c, 4), std::vector<double>{0.0});
}

TEST(AttentionMassTest, NoQueriesAreRefused) {
  emulation::Device device;
  const DeviceBlocks blocks = UploadBlocks(device, Pack({40}, 16));
  EXPECT_EQ(LaunchAttentionMass<float>(&device, Contiguous({1, 1, 32}), blocks, {}, nullptr,
                                       nullptr, 0, nullptr, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
