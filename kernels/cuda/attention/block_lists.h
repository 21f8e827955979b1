#pragma once

// The block index of a micro-batch on a device: which past blocks each query attends to (query
// lists), and the same pairs by block (block lists), as kernels::BlockLists describes them.
//
//   LaunchQueryOffsets   budgets -> query_offsets
//   LaunchSelectBlocks   scores -> query_blocks (router.h)
//   LaunchBlockLists     query lists -> block lists
//
// Results are the same in every run. Launchers neither allocate nor wait; scratch is the caller's,
// aligned to 8 bytes, and is free again when the stream has come past the launch.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"
#include "kernels/packed_blocks.h"

namespace sparsebalance::kernels::cuda {

// What the host needs to allocate lists: the (query, past block) pairs of one head. `budgets`
// [sequences], in blocks, own block included.
int64_t SelectedPairs(const PackedBlocks& blocks, const std::vector<int32_t>& budgets);

// query_offsets [tokens + 1]: where each query's list begins, the same for every head; the last
// entry is SelectedPairs. budgets [sequences], each at least 1.
int64_t QueryOffsetsScratchBytes(const DeviceBlocks& blocks);
absl::Status LaunchQueryOffsets(StreamHandle stream, const DeviceBlocks& blocks,
                                DevicePtr<const int32_t> budgets, DevicePtr<int64_t> query_offsets,
                                DevicePtr<std::byte> scratch);

// block_offsets [num_heads, blocks + 1], relative to the head's first pair, and block_queries
// [num_heads, pairs], tokens ascending within a block, from query_blocks [num_heads, pairs].
// INVALID_ARGUMENT where num_heads or pairs is out of range.
int64_t BlockListsScratchBytes(int num_heads, const DeviceBlocks& blocks);
absl::Status LaunchBlockLists(StreamHandle stream, int num_heads, const DeviceBlocks& blocks,
                              DevicePtr<const int64_t> query_offsets, int64_t pairs,
                              DevicePtr<const int32_t> query_blocks,
                              DevicePtr<int64_t> block_offsets, DevicePtr<int32_t> block_queries,
                              DevicePtr<std::byte> scratch);

}  // namespace sparsebalance::kernels::cuda
