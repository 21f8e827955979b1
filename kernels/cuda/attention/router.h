#pragma once

// MoBA's router on a device: mean keys, the selection of past blocks, and coverage curves, as
// kernels::Backend describes them. T is float or Bf16; means, scores and their sums are float.
//
//   LaunchBlockMeans(stream, shape, blocks, k, means);
//   LaunchQueryOffsets(stream, blocks, budgets, query_offsets, scratch);  // block_lists.h
//   LaunchSelectBlocks(stream, shape, blocks, shared_limit, q, means, query_offsets, pairs,
//                      query_blocks, scratch);
//
// Scores exist only for the few queries that a thread block works on. Results are the same in every
// run. Launchers neither allocate nor wait; scratch is the caller's, aligned to 16 bytes, may be
// null where 0 bytes are asked for, and is free again when the stream has come past the launch.
//
// All return INVALID_ARGUMENT where head_dim is no multiple of 8 in [8, 256], a stride no multiple
// of 8, or heads no multiple of KV heads. q, k and means are aligned to 16 bytes.
// `shared_limit` is the most shared memory of a thread block, in bytes: kSharedSm80, kSharedSm90.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/coverage_guard.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

inline constexpr int64_t kSharedSm80 = int64_t{163} << 10;
inline constexpr int64_t kSharedSm90 = int64_t{227} << 10;

// means [num_kv_heads, blocks, head_dim]; only k's stride of `shape` matters.
template <typename T>
absl::Status LaunchBlockMeans(StreamHandle stream, const AttentionShape& shape,
                              const DeviceBlocks& blocks, DevicePtr<const T> k,
                              DevicePtr<float> means);

// query_blocks [num_heads, pairs]: for each query as many past blocks as query_offsets leave room
// for, those with the largest q . mean, of equal ones the lower block; ascending.
int64_t SelectScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                           int64_t shared_limit);
template <typename T>
absl::Status LaunchSelectBlocks(StreamHandle stream, const AttentionShape& shape,
                                const DeviceBlocks& blocks, int64_t shared_limit,
                                DevicePtr<const T> q, DevicePtr<const float> means,
                                DevicePtr<const int64_t> query_offsets, int64_t pairs,
                                DevicePtr<int32_t> query_blocks, DevicePtr<std::byte> scratch);

// curves [sequences, CoverageGridSize(most_blocks)]: for each sequence its coverage at
// CoverageGrid(its blocks), then ones. Sampled queries are those of Backend::CoverageCurves;
// INVALID_ARGUMENT where sample_stride < 1.
int64_t CoverageScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                             int64_t shared_limit);
template <typename T>
absl::Status LaunchCoverageCurves(StreamHandle stream, const AttentionShape& shape,
                                  const DeviceBlocks& blocks, int64_t shared_limit,
                                  DevicePtr<const T> q, DevicePtr<const float> means,
                                  int sample_stride, DevicePtr<double> curves,
                                  DevicePtr<std::byte> scratch);

// realized [sequences] = RealizedBudget (coverage_guard.h) of planned and base [sequences] by the
// curves of LaunchCoverageCurves: budgets that the host need not know.
absl::Status LaunchRealizedBudgets(StreamHandle stream, const DeviceBlocks& blocks,
                                   DevicePtr<const double> curves, DevicePtr<const int32_t> planned,
                                   DevicePtr<const int32_t> base, double coverage_guard,
                                   DevicePtr<int32_t> realized);

}  // namespace sparsebalance::kernels::cuda
