#pragma once

// Tiles of the attention kernels, and the dynamic shared memory that they take. All thread blocks
// have kTileThreads threads. With Bf16 two of them fit into a multiprocessor of sm_80 and sm_90;
// ptxas_table.txt has the figures.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/tile_product.h"

namespace sparsebalance::kernels::cuda {

inline constexpr int kTileThreads = 128;
inline constexpr int kTileWarps = kTileThreads / 32;
// Thread blocks that a multiprocessor has room for; float's tiles take all of its shared memory.
template <typename T>
inline constexpr int kResidentBlocks = std::is_same_v<T, Bf16> ? 2 : 1;
// Rows of the tiles that are fetched while others are in use: keys, or the queries of key tiles.
inline constexpr int kStep = 32;
inline constexpr int kStepTiles = kStep / 8;

// `fixed_rows` stay for all steps; each step brings rows of two tensors, and two steps are there.
template <typename T, int kDim>
constexpr int64_t TileBytes(int64_t fixed_rows) {
  return (fixed_rows + 4 * kStep) * kPitch<T, kDim> * static_cast<int64_t>(sizeof(T)) +
         kTileWarps * TileProduct<T, kDim>::kWarpFloats * static_cast<int64_t>(sizeof(float));
}

// Queries; keys and values come in steps.
template <typename T, int kDim>
struct ForwardSizes {
  // With 32 queries a warp uses what it has loaded of keys and values twice.
  static constexpr int kRowTiles = std::is_same_v<T, Bf16> ? 2 : 1;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kTileWarps * kWarpRows;
  static constexpr int64_t kSharedBytes = TileBytes<T, kDim>(kRows);
};

// Queries and gradients of outputs; keys and values come in steps.
template <typename T, int kDim>
struct QueryGradSizes {
  static constexpr int kRows = 16 * kTileWarps;
  static constexpr int64_t kSharedBytes = TileBytes<T, kDim>(2 * kRows);
};

// Keys and values; queries and gradients of outputs come in steps.
inline constexpr int kTileKeys = 16 * kTileWarps;
template <typename T, int kDim>
struct KeyGradSizes {
  static constexpr int64_t kSharedBytes = TileBytes<T, kDim>(2 * kTileKeys);
};

}  // namespace sparsebalance::kernels::cuda
