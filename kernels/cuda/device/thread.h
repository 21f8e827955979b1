#pragma once

// Who a thread is, barriers, and operations that the lanes of a warp do together. All lanes of a
// mask must reach the same call; lanes that have returned from the kernel count as missing. The
// emulation fails a launch that breaks this, where a GPU hangs or computes nonsense.

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/types.h"
#if !defined(__CUDACC__)
#include "kernels/emulation/context.h"
#endif

namespace sparsebalance::kernels::cuda {

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;

#if defined(__CUDACC__)

SB_DEVICE inline Dim3 ThreadIdx() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
SB_DEVICE inline Dim3 BlockIdx() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
SB_DEVICE inline Dim3 BlockDim() { return {blockDim.x, blockDim.y, blockDim.z}; }
SB_DEVICE inline Dim3 GridDim() { return {gridDim.x, gridDim.y, gridDim.z}; }

SB_DEVICE inline void SyncThreads() { __syncthreads(); }
SB_DEVICE inline void SyncWarp(uint32_t mask = kAllLanes) { __syncwarp(mask); }
// Orders this thread's writes before its later ones for threads of all blocks.
SB_DEVICE inline void ThreadFence() { __threadfence(); }

// The value of lane `source` (modulo width) in this lane's segment of `width` lanes, a power of 2.
template <typename T>
SB_DEVICE inline T Shfl(uint32_t mask, T value, int source, int width = 32) {
  return __shfl_sync(mask, value, source, width);
}
// The value of the lane `delta` below; a lane's own where that is outside of its segment.
template <typename T>
SB_DEVICE inline T ShflUp(uint32_t mask, T value, int delta, int width = 32) {
  return __shfl_up_sync(mask, value, static_cast<unsigned>(delta), width);
}
template <typename T>
SB_DEVICE inline T ShflDown(uint32_t mask, T value, int delta, int width = 32) {
  return __shfl_down_sync(mask, value, static_cast<unsigned>(delta), width);
}
template <typename T>
SB_DEVICE inline T ShflXor(uint32_t mask, T value, int lane_mask, int width = 32) {
  return __shfl_xor_sync(mask, value, lane_mask, width);
}

SB_DEVICE inline uint32_t Ballot(uint32_t mask, bool predicate) {
  return __ballot_sync(mask, predicate);
}
SB_DEVICE inline bool Any(uint32_t mask, bool predicate) {
  return __any_sync(mask, predicate) != 0;
}
SB_DEVICE inline bool All(uint32_t mask, bool predicate) {
  return __all_sync(mask, predicate) != 0;
}

#else

inline const Dim3& ThreadIdx() { return emulation::current_thread->index; }
inline const Dim3& BlockIdx() { return emulation::current_thread->grid->block_index; }
inline const Dim3& BlockDim() { return emulation::current_thread->grid->block_dim; }
inline const Dim3& GridDim() { return emulation::current_thread->grid->grid_dim; }

inline void SyncThreads(SB_CALL_SITE) { emulation::SyncThreads({file, line}); }
inline void SyncWarp(uint32_t mask = kAllLanes SB_LAST_CALL_SITE) {
  emulation::SyncWarp(mask, {file, line});
}
inline void ThreadFence() {}

namespace internal {

template <typename T>
T ShuffleValue(emulation::Shuffle kind, uint32_t mask, T value, int argument, int width,
               const emulation::CallSite& site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulation::ShuffleBits(kind, mask, bits, argument, width, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace internal

template <typename T>
T Shfl(uint32_t mask, T value, int source, int width = 32 SB_LAST_CALL_SITE) {
  return internal::ShuffleValue(emulation::Shuffle::kIndex, mask, value, source, width,
                                {file, line});
}
template <typename T>
T ShflUp(uint32_t mask, T value, int delta, int width = 32 SB_LAST_CALL_SITE) {
  return internal::ShuffleValue(emulation::Shuffle::kUp, mask, value, delta, width, {file, line});
}
template <typename T>
T ShflDown(uint32_t mask, T value, int delta, int width = 32 SB_LAST_CALL_SITE) {
  return internal::ShuffleValue(emulation::Shuffle::kDown, mask, value, delta, width, {file, line});
}
template <typename T>
T ShflXor(uint32_t mask, T value, int lane_mask, int width = 32 SB_LAST_CALL_SITE) {
  return internal::ShuffleValue(emulation::Shuffle::kXor, mask, value, lane_mask, width,
                                {file, line});
}

inline uint32_t Ballot(uint32_t mask, bool predicate SB_LAST_CALL_SITE) {
  return emulation::Ballot(mask, predicate, {file, line});
}
inline bool Any(uint32_t mask, bool predicate SB_LAST_CALL_SITE) {
  return emulation::Ballot(mask, predicate, {file, line}) != 0;
}
inline bool All(uint32_t mask, bool predicate SB_LAST_CALL_SITE) {
  return emulation::Ballot(mask, !predicate, {file, line}) == 0;
}

#endif

// Number of this thread in a grid of one dimension.
SB_DEVICE inline int64_t GlobalThread() {
  return int64_t{BlockIdx().x} * BlockDim().x + ThreadIdx().x;
}
// Number of this thread in its block; its lane and its warp.
SB_DEVICE inline int LinearThread() {
  return static_cast<int>(ThreadIdx().x +
                          BlockDim().x * (ThreadIdx().y + BlockDim().y * ThreadIdx().z));
}
SB_DEVICE inline int LaneId() { return LinearThread() % 32; }
SB_DEVICE inline int WarpId() { return LinearThread() / 32; }

}  // namespace sparsebalance::kernels::cuda
