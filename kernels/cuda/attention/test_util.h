#pragma once

// What tests of the attention kernels share: a micro-batch that lies both on an emulated device and
// in the CPU backend.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/test_util.h"
#include "kernels/cuda/attention/block_lists.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/attention/router.h"
#include "kernels/emulation/device.h"
#include "kernels/emulation/test_util.h"

namespace sparsebalance::kernels::cuda {

using emulation::Download;
using emulation::Upload;

inline PackedBlocks Pack(const std::vector<int64_t>& lengths, int block_tokens) {
  std::vector<int64_t> cu_seqlens = {0};
  for (const int64_t length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
  return MakePackedBlocks(cu_seqlens, block_tokens).value();
}

inline int64_t MostBlocks(const PackedBlocks& blocks) {
  int64_t most = 0;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    most = std::max(most, blocks.SequenceBlocks(s));
  }
  return most;
}

inline DeviceBlocks UploadBlocks(emulation::Device& device, const PackedBlocks& blocks) {
  DeviceBlocks out;
  out.block_tokens = blocks.block_tokens;
  out.tokens = blocks.tokens();
  out.sequences = blocks.sequences();
  out.blocks = blocks.blocks();
  out.most_blocks = MostBlocks(blocks);
  out.cu_seqlens = Upload(device, blocks.cu_seqlens, "cu_seqlens");
  out.first_block = Upload(device, blocks.first_block, "first_block");
  out.block_begin = Upload(device, blocks.block_begin, "block_begin");
  out.block_sequence = Upload(device, blocks.block_sequence, "block_sequence");
  return out;
}

// Heads that lie side by side, as in the reference.
inline AttentionShape Contiguous(const reference::Heads& heads) {
  AttentionShape shape;
  shape.num_heads = heads.num_heads;
  shape.num_kv_heads = heads.num_kv_heads;
  shape.head_dim = heads.head_dim;
  shape.q_stride = static_cast<int64_t>(heads.num_heads) * heads.head_dim;
  shape.kv_stride = static_cast<int64_t>(heads.num_kv_heads) * heads.head_dim;
  shape.out_stride = shape.q_stride;
  return shape;
}

// Whole numbers from -range to range: their scores are exact in every order of the sums, and many
// are equal.
inline reference::Tensor WholeNumbers(int64_t count, uint32_t seed, int range) {
  std::mt19937 generator(seed);
  reference::Tensor out(count);
  for (double& x : out) x = static_cast<int>(generator() % (2 * range + 1)) - range;
  return out;
}

// Values that T holds.
template <typename T>
reference::Tensor Rounded(reference::Tensor x) {
  for (double& value : x) {
    value = static_cast<float>(T(static_cast<float>(value)));
  }
  return x;
}

template <typename T>
DevicePtr<const T> UploadAs(emulation::Device& device, const reference::Tensor& x,
                            const char* name) {
  std::vector<T> values;
  for (const double value : x) values.push_back(T(static_cast<float>(value)));
  return Upload(device, values, name);
}

inline DevicePtr<std::byte> Scratch(emulation::Device& device, int64_t bytes) {
  return device.Allocate<std::byte>(bytes, "scratch").value();
}

struct Selected {
  int64_t pairs = 0;
  std::vector<int64_t> query_offsets;
  std::vector<int32_t> query_blocks;  // [heads, pairs]
};

// Mean keys, offsets and selection by the kernels, from the budgets on.
template <typename T>
Selected Select(emulation::Device& device, const reference::Heads& heads,
                const PackedBlocks& blocks, const reference::Tensor& q, const reference::Tensor& k,
                const std::vector<int32_t>& budgets, int64_t shared_limit = kSharedSm90) {
  const AttentionShape shape = Contiguous(heads);
  const DeviceBlocks on_device = UploadBlocks(device, blocks);
  const auto means =
      device.Allocate<float>(heads.num_kv_heads * blocks.blocks() * heads.head_dim, "means")
          .value();
  SB_EXPECT_OK(LaunchBlockMeans<T>(&device, shape, on_device, UploadAs<T>(device, k, "k"), means));
  Selected out;
  out.pairs = SelectedPairs(blocks, budgets);
  const auto offsets = device.Allocate<int64_t>(blocks.tokens() + 1, "query_offsets").value();
  SB_EXPECT_OK(LaunchQueryOffsets(&device, on_device, Upload(device, budgets, "budgets"), offsets,
                                  Scratch(device, QueryOffsetsScratchBytes(on_device))));
  const auto query_blocks =
      device.Allocate<int32_t>(heads.num_heads * out.pairs, "query_blocks").value();
  SB_EXPECT_OK(
      LaunchSelectBlocks<T>(&device, shape, on_device, shared_limit, UploadAs<T>(device, q, "q"),
                            means, offsets, out.pairs, query_blocks,
                            Scratch(device, SelectScratchBytes(shape, on_device, shared_limit))));
  out.query_offsets = Download(device, offsets, blocks.tokens() + 1);
  out.query_blocks = Download(device, query_blocks, heads.num_heads * out.pairs);
  return out;
}

// The same by the CPU backend.
struct CpuSelected {
  Selected selected;
  std::vector<int64_t> block_offsets;
  std::vector<int32_t> block_queries;
};

inline CpuSelected SelectOnCpu(const reference::Heads& heads, const PackedBlocks& blocks,
                               const reference::Tensor& q, const reference::Tensor& k,
                               const std::vector<int32_t>& budgets) {
  const std::unique_ptr<Backend> cpu = TestBackend();
  const AttentionShape shape = Contiguous(heads);
  const auto layout = *cpu->CreateLayout(blocks);
  const DeviceArray<float> means =
      *cpu->Allocate<float>(heads.num_kv_heads * blocks.blocks() * heads.head_dim);
  const DeviceArray<float> keys = ToDevice(cpu.get(), k);
  const DeviceArray<float> queries = ToDevice(cpu.get(), q);
  SB_EXPECT_OK(cpu->BlockMeans(shape, *layout, keys.span(), means.span()));
  const BlockLists lists =
      *cpu->SelectBlocks(shape, *layout, queries.span(), means.span(), budgets);
  return {
      {lists.pairs, ToHost(cpu.get(), lists.query_offsets), ToHost(cpu.get(), lists.query_blocks)},
      ToHost(cpu.get(), lists.block_offsets),
      ToHost(cpu.get(), lists.block_queries)};
}

}  // namespace sparsebalance::kernels::cuda
