#pragma once

// A case of block-sparse attention for tests: tensors and a selection on the host, how the kernels
// compute it in an emulated device, and what the fp64 reference says.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/test_util.h"

namespace sparsebalance::kernels::cuda {

struct AttentionCase {
  reference::Heads heads;
  PackedBlocks blocks;
  reference::Selection selection;
  AttentionShape shape;
  reference::Tensor q, k, v, out_grad;  // contiguous; every value is one that Bf16 holds
};

// Each query's `budgets[sequence]` - 1 past blocks, drawn at random. With `sink` all that choose
// any have block 0 of their sequence among them.
inline reference::Selection RandomSelection(int num_heads, const PackedBlocks& blocks,
                                            const std::vector<int32_t>& budgets, bool sink,
                                            std::mt19937& generator) {
  reference::Selection out(num_heads, std::vector<std::vector<int32_t>>(blocks.tokens()));
  for (int h = 0; h < num_heads; ++h) {
    for (int64_t b = 0; b < blocks.blocks(); ++b) {
      const int32_t sequence = blocks.block_sequence[b];
      const auto first = static_cast<int32_t>(blocks.first_block[sequence]);
      const int64_t wanted = std::min<int64_t>(budgets[sequence] - 1, b - first);
      std::vector<int32_t> past(b - first);
      std::iota(past.begin(), past.end(), first);
      for (int64_t t = blocks.block_begin[b]; t < blocks.block_begin[b + 1]; ++t) {
        std::vector<int32_t>& chosen = out[h][t];
        const bool fixed = sink && wanted > 0;
        if (fixed) chosen.push_back(first);
        std::sample(past.begin() + (fixed ? 1 : 0), past.end(), std::back_inserter(chosen),
                    wanted - (fixed ? 1 : 0), generator);
      }
    }
  }
  return out;
}

inline AttentionCase MakeCase(const reference::Heads& heads, const PackedBlocks& blocks,
                              const std::vector<int32_t>& budgets, uint32_t seed,
                              bool sink = false) {
  std::mt19937 generator(seed);
  const auto tensor = [&](int num_heads, uint32_t offset) {
    return Rounded<Bf16>(RandomTensor(blocks.tokens() * num_heads * heads.head_dim, seed + offset));
  };
  return {heads,
          blocks,
          RandomSelection(heads.num_heads, blocks, budgets, sink, generator),
          Contiguous(heads),
          tensor(heads.num_heads, 1),
          tensor(heads.num_kv_heads, 2),
          tensor(heads.num_kv_heads, 3),
          tensor(heads.num_heads, 4)};
}

// The reference's selection as the lists that kernels take.
inline DeviceLists UploadLists(emulation::Device& device, const PackedBlocks& blocks,
                               const reference::Selection& selection) {
  std::vector<int64_t> query_offsets = {0};
  for (const std::vector<int32_t>& chosen : selection[0]) {
    query_offsets.push_back(query_offsets.back() + static_cast<int64_t>(chosen.size()));
  }
  std::vector<int32_t> query_blocks;
  std::vector<int64_t> block_offsets;
  std::vector<int32_t> block_queries;
  for (const auto& queries : selection) {
    std::vector<std::vector<int32_t>> of_block(blocks.blocks());
    for (size_t t = 0; t < queries.size(); ++t) {
      query_blocks.insert(query_blocks.end(), queries[t].begin(), queries[t].end());
      for (const int32_t b : queries[t]) of_block[b].push_back(static_cast<int32_t>(t));
    }
    block_offsets.push_back(0);
    for (const std::vector<int32_t>& list : of_block) {
      block_offsets.push_back(block_offsets.back() + static_cast<int64_t>(list.size()));
      block_queries.insert(block_queries.end(), list.begin(), list.end());
    }
  }
  return {query_offsets.back(), Upload(device, query_offsets, "query_offsets"),
          Upload(device, query_blocks, "query_blocks"),
          Upload(device, block_offsets, "block_offsets"),
          Upload(device, block_queries, "block_queries")};
}

template <typename T>
struct AttentionResults {
  std::vector<T> out, q_grad, k_grad, v_grad;
  std::vector<float> lse;
};

// Rows of `row` elements that lie `stride` apart, NaN between them, and back. A kernel that writes
// between rows is noticed.
template <typename T>
DevicePtr<const T> UploadRows(emulation::Device& device, const reference::Tensor& x, int64_t row,
                              int64_t stride, const char* name) {
  const auto rows = static_cast<int64_t>(x.size()) / row;
  reference::Tensor spread(rows * stride, std::numeric_limits<double>::quiet_NaN());
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(x.begin() + i * row, row, spread.begin() + i * stride);
  }
  return UploadAs<T>(device, spread, name);
}
template <typename T>
std::vector<T> DownloadRows(emulation::Device& device, DevicePtr<T> x, int64_t rows, int64_t row,
                            int64_t stride) {
  const std::vector<T> spread = Download(device, x, rows * stride);
  std::vector<T> out;
  for (int64_t i = 0; i < rows; ++i) {
    out.insert(out.end(), spread.begin() + i * stride, spread.begin() + i * stride + row);
    for (int64_t j = row; j < stride; ++j) {
      EXPECT_TRUE(std::isnan(static_cast<float>(spread[i * stride + j]))) << "row " << i;
    }
  }
  return out;
}

// Both passes; the limits are for scratch, in bytes.
template <typename T>
AttentionResults<T> RunAttention(emulation::Device& device, const AttentionCase& c,
                                 const DeviceBlocks& blocks, const DeviceLists& lists,
                                 int64_t scratch_limit) {
  const AttentionShape& shape = c.shape;
  const int64_t tokens = c.blocks.tokens();
  const int64_t q_row = int64_t{shape.num_heads} * shape.head_dim;
  const int64_t kv_row = int64_t{shape.num_kv_heads} * shape.head_dim;
  AttentionBackwardTensors<T> tensors;
  tensors.q = UploadRows<T>(device, c.q, q_row, shape.q_stride, "q");
  tensors.k = UploadRows<T>(device, c.k, kv_row, shape.kv_stride, "k");
  tensors.v = UploadRows<T>(device, c.v, kv_row, shape.kv_stride, "v");
  tensors.out_grad = UploadRows<T>(device, c.out_grad, q_row, shape.out_stride, "out_grad");
  const auto allocate = [&](int64_t stride, const char* name) {
    return device.Allocate<T>(tokens * stride, name).value();
  };
  const DevicePtr<T> out = allocate(shape.out_stride, "out");
  tensors.q_grad = allocate(shape.q_stride, "q_grad");
  tensors.k_grad = allocate(shape.kv_stride, "k_grad");
  tensors.v_grad = allocate(shape.kv_stride, "v_grad");
  const auto lse = device.Allocate<float>(shape.num_heads * tokens, "lse").value();
  tensors.out = out;
  tensors.lse = lse;

  int64_t bytes = AttentionForwardScratchBytes<T>(shape, blocks, lists.pairs, scratch_limit);
  SB_EXPECT_OK(LaunchAttentionForward<T>(&device, shape, blocks, lists, tensors.q, tensors.k,
                                         tensors.v, out, lse, bytes, Scratch(device, bytes)));
  bytes = AttentionBackwardScratchBytes<T>(shape, blocks, lists.pairs, scratch_limit);
  SB_EXPECT_OK(LaunchAttentionBackward<T>(&device, shape, blocks, lists, tensors, bytes,
                                          Scratch(device, bytes)));
  return {DownloadRows(device, out, tokens, q_row, shape.out_stride),
          DownloadRows(device, tensors.q_grad, tokens, q_row, shape.q_stride),
          DownloadRows(device, tensors.k_grad, tokens, kv_row, shape.kv_stride),
          DownloadRows(device, tensors.v_grad, tokens, kv_row, shape.kv_stride),
          Download(device, lse, shape.num_heads * tokens)};
}

template <typename T>
AttentionResults<T> RunAttention(emulation::Order order, const AttentionCase& c,
                                 int64_t scratch_limit) {
  emulation::Device device({.order = order, .seed = 7, .limits = emulation::Sm80()});
  return RunAttention<T>(device, c, UploadBlocks(device, c.blocks),
                         UploadLists(device, c.blocks, c.selection), scratch_limit);
}

template <typename T>
void ExpectSameBits(const std::vector<T>& actual, const std::vector<T>& expected,
                    const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(T)), 0) << what;
}
template <typename T>
void ExpectSameBits(const AttentionResults<T>& actual, const AttentionResults<T>& expected) {
  ExpectSameBits(actual.out, expected.out, "out");
  ExpectSameBits(actual.lse, expected.lse, "lse");
  ExpectSameBits(actual.q_grad, expected.q_grad, "q_grad");
  ExpectSameBits(actual.k_grad, expected.k_grad, "k_grad");
  ExpectSameBits(actual.v_grad, expected.v_grad, "v_grad");
}

// Normalized mean squared error, each as large as it was in the worst case so far.
struct WorstErrors {
  double out = 0, lse = 0, grads = 0;
};

// Gradients that are differences of larger terms may be 0; then their rounding is compared with
// single precision's for values near 1.
template <typename T>
void ExpectNmse(const std::vector<T>& actual, const reference::Tensor& expected, double limit,
                const char* what, double& worst) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = static_cast<float>(actual[i]) - expected[i];
    error += difference * difference;
    power += expected[i] * expected[i];
  }
  const double rounding = 1e-13 * static_cast<double>(actual.size());
  EXPECT_LE(error, limit * power + rounding) << what;  // Not so where anything is NaN.
  worst = std::max(worst, error / std::max(power, rounding / limit));
}

template <typename T>
void ExpectReference(const AttentionCase& c, const AttentionResults<T>& results,
                     WorstErrors& worst) {
  const reference::Attention forward =
      reference::AttentionForward(c.heads, c.blocks, c.selection, c.q, c.k, c.v);
  const reference::AttentionGrads grads =
      reference::AttentionBackward(c.heads, c.blocks, c.selection, c.q, c.k, c.v, c.out_grad);
  const double limit = std::is_same_v<T, float> ? 1e-10 : 5e-4;
  ExpectNmse(results.out, forward.out, limit, "out", worst.out);
  ExpectNmse(results.lse, forward.lse, 1e-10, "lse", worst.lse);
  ExpectNmse(results.q_grad, grads.q, limit, "q_grad", worst.grads);
  ExpectNmse(results.k_grad, grads.k, limit, "k_grad", worst.grads);
  ExpectNmse(results.v_grad, grads.v, limit, "v_grad", worst.grads);
}

}  // namespace sparsebalance::kernels::cuda
