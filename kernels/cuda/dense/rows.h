#pragma once

// How the kernels divide their work, and sums whose order is fixed.
//
// Kernels over rows give each row to a warp, whose lanes take neighbouring vectors:
//
//   for (int64_t row = FirstRow(); row < rows; row += RowStep()) {
//     for (int64_t c = N * LaneId(); c < columns; c += 32 * N) ...
//
// No grid has more than kMaxBlocks blocks; threads go on with a step of the grid's size. The size
// depends on shapes alone, never on the device, and so does every result.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/launch_config.h"
#include "kernels/cuda/device/memory.h"
#include "kernels/cuda/device/thread.h"

namespace sparsebalance::kernels::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int64_t kMaxBlocks = 2048;

// Host: blocks for `work` items, `per_block` of them a block at a time.
inline unsigned BlocksFor(int64_t work, int64_t per_block) {
  return static_cast<unsigned>(std::min((work + per_block - 1) / per_block, kMaxBlocks));
}

inline LaunchConfig RowsConfig(const char* name, int64_t rows) {
  return {.grid = {BlocksFor(rows, kWarps)}, .block = {kThreads}, .name = name};
}

SB_DEVICE inline int64_t FirstRow() { return int64_t{BlockIdx().x} * kWarps + WarpId(); }
SB_DEVICE inline int64_t RowStep() { return int64_t{GridDim().x} * kWarps; }
SB_DEVICE inline int64_t ThreadStep() { return int64_t{GridDim().x} * BlockDim().x; }

// The sum over all lanes, in every lane.
template <typename T>
SB_DEVICE inline T WarpSum(T value) {
  SB_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) value += ShflXor(kAllLanes, value, mask);
  return value;
}

// The sum over a block of kBlockThreads, in every thread; all of them call it.
template <int kBlockThreads, typename T>
SB_DEVICE inline T BlockSum(T value) {
  SB_SHARED_ARRAY(T, warp_sums, kBlockThreads / 32);
  value = WarpSum(value);
  SyncThreads();  // Another sum may still be read from the array.
  if (LaneId() == 0) warp_sums[WarpId()] = value;
  SyncThreads();
  T sum = warp_sums[0];
  for (int warp = 1; warp < kBlockThreads / 32; ++warp) sum += warp_sums[warp];
  return sum;
}

}  // namespace sparsebalance::kernels::cuda
