#pragma once

// What all lanes of a warp, or all threads of a block, work out together. Sums have a fixed order,
// so that results repeat.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace sparsebalance::kernels::cuda {

SB_DEVICE inline int CountBits(uint32_t word) {
#if defined(__CUDACC__)
  return __popc(word);
#else
  return std::popcount(word);
#endif
}

// Sum, least and largest of a value of each lane, given to all lanes. A GPU has one instruction for
// each (redux.sync); integers make its order irrelevant.
#if defined(__CUDACC__)
SB_DEVICE inline int32_t WarpSum(int32_t x) { return __reduce_add_sync(kAllLanes, x); }
SB_DEVICE inline int32_t WarpMin(int32_t x) { return __reduce_min_sync(kAllLanes, x); }
SB_DEVICE inline int32_t WarpMax(int32_t x) { return __reduce_max_sync(kAllLanes, x); }
#else
inline int32_t WarpSum(int32_t x) {
  for (int mask = 16; mask > 0; mask /= 2) x += ShflXor(kAllLanes, x, mask);
  return x;
}
inline int32_t WarpMin(int32_t x) {
  for (int mask = 16; mask > 0; mask /= 2) x = std::min(x, ShflXor(kAllLanes, x, mask));
  return x;
}
inline int32_t WarpMax(int32_t x) {
  for (int mask = 16; mask > 0; mask /= 2) x = std::max(x, ShflXor(kAllLanes, x, mask));
  return x;
}
#endif
SB_DEVICE inline double WarpSum(double x) {
  SB_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x += ShflXor(kAllLanes, x, mask);
  return x;
}

// Sum of `value` over the threads before this one; `total` gets the sum over all. Every thread of
// the block calls it. `warp_sums` is scratch of a value for each warp.
SB_DEVICE inline int64_t BlockExclusiveScan(int64_t value, SharedPtr<int64_t> warp_sums,
                                            int64_t* total) {
  const int warps = static_cast<int>(BlockDim().x) / 32;
  int64_t sum = value;
  SB_UNROLL
  for (int delta = 1; delta < 32; delta *= 2) {
    const int64_t below = ShflUp(kAllLanes, sum, delta);
    if (LaneId() >= delta) sum += below;
  }
  if (LaneId() == 31) warp_sums[WarpId()] = sum;
  SyncThreads();
  int64_t before = sum - value;
  int64_t all = 0;
  for (int warp = 0; warp < warps; ++warp) {
    if (warp < WarpId()) before += warp_sums[warp];
    all += warp_sums[warp];
  }
  *total = all;
  SyncThreads();  // The next call writes warp_sums again.
  return before;
}

}  // namespace sparsebalance::kernels::cuda
