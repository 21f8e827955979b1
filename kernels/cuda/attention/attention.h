#pragma once

// Block-sparse attention (MoBA) on a device, both passes, and the audit of its selection, as
// kernels::Backend describes them. T is float or Bf16; scores, statistics and sums are float.
//
//   const int64_t bytes = AttentionForwardScratchBytes<Bf16>(shape, blocks, lists.pairs, limit);
//   LaunchAttentionForward<Bf16>(stream, shape, blocks, lists, q, k, v, out, lse, bytes, scratch);
//   LaunchAttentionBackward<Bf16>(stream, shape, blocks, lists, ..., bytes, scratch);
//
// The kernels see lists, never a budget. Results are the same in every run, to the bit, and do not
// depend on the scratch. Launchers neither allocate nor wait; scratch is the caller's, aligned to
// 16 bytes, and is free again when the stream has come past the launch.
//
// Scratch holds what a query has computed from one block until all its blocks are there, for as
// many heads at once as fit. Its size is the smallest number of bytes that takes the fewest rounds
// within `scratch_limit_bytes`, or that of one head (backward: one KV head with its query heads)
// where the limit is below that. A launcher takes the bytes it may use, at least that of one head.
//
// All return INVALID_ARGUMENT where head_dim is not 32, 64 or 128 (AttentionMass: no multiple of 8
// in [8, 256]), a stride no multiple of 8 or shorter than its heads, heads no multiple of KV heads,
// the scratch too small, or the lists longer than a grid. All tensors are aligned to 16 bytes.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// kernels::BlockLists on the device; pointers may be null where pairs is 0, but for the offsets.
struct DeviceLists {
  int64_t pairs = 0;                       // of one head
  DevicePtr<const int64_t> query_offsets;  // [tokens + 1]
  DevicePtr<const int32_t> query_blocks;   // [num_heads, pairs]
  DevicePtr<const int64_t> block_offsets;  // [num_heads, blocks + 1]
  DevicePtr<const int32_t> block_queries;  // [num_heads, pairs]
};

// out[t] of every head, and lse [num_heads, tokens].
template <typename T>
int64_t AttentionForwardScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                                     int64_t pairs, int64_t scratch_limit_bytes);
template <typename T>
absl::Status LaunchAttentionForward(StreamHandle stream, const AttentionShape& shape,
                                    const DeviceBlocks& blocks, const DeviceLists& lists,
                                    DevicePtr<const T> q, DevicePtr<const T> k,
                                    DevicePtr<const T> v, DevicePtr<T> out, DevicePtr<float> lse,
                                    int64_t scratch_bytes, DevicePtr<std::byte> scratch);

// The tensors of a backward pass; out_grad is strided as out, gradients as their tensors.
template <typename T>
struct AttentionBackwardTensors {
  DevicePtr<const T> q, k, v, out;
  DevicePtr<const float> lse;
  DevicePtr<const T> out_grad;
  DevicePtr<T> q_grad, k_grad, v_grad;
};

// Writes (does not add) all three gradients.
template <typename T>
int64_t AttentionBackwardScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                                      int64_t pairs, int64_t scratch_limit_bytes);
template <typename T>
absl::Status LaunchAttentionBackward(StreamHandle stream, const AttentionShape& shape,
                                     const DeviceBlocks& blocks, const DeviceLists& lists,
                                     const AttentionBackwardTensors<T>& tensors,
                                     int64_t scratch_bytes, DevicePtr<std::byte> scratch);

// mass [sequences] of Backend::AttentionMass; `queries` is at least 1. Scores are float, their
// exponentials and sums double.
int64_t AttentionMassScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                                  int queries);
template <typename T>
absl::Status LaunchAttentionMass(StreamHandle stream, const AttentionShape& shape,
                                 const DeviceBlocks& blocks, const DeviceLists& lists,
                                 DevicePtr<const T> q, DevicePtr<const T> k, int queries,
                                 DevicePtr<double> mass, DevicePtr<std::byte> scratch);

}  // namespace sparsebalance::kernels::cuda
