#pragma once

// How the attention kernels cut the (query, block) pairs into tiles, find them on the device, and
// bring them into shared memory.
//
// A query tile is up to kRows queries of one head that all see one key block: a stretch of that
// block's list, or (own tiles) consecutive queries of the block itself, which see it causally. So
// the queries of a popular block are many tiles, and every tile has at most kRows * block_tokens
// pairs. Query t gets one result from each of its blocks. These lie in `slots` rows of a head: pair
// p of the head in row p, the own block of query t in row pairs + t.

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sizes.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/attention/tile_product.h"
#include "kernels/cuda/attention/warp.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"

namespace sparsebalance::kernels::cuda {

SB_DEVICE inline int64_t KvHead(const AttentionPlan& plan, int64_t head) {
  return head / (plan.shape.num_heads / plan.shape.num_kv_heads);
}

// --- units of work ------------------------------------------------------------------------------
// A block whose list begins at entry o of n has its pieces of `length` entries at units o / length
// + block and following: always room for enough of them, and neither counting nor host reads, at
// the price of at most one idle unit for each block.
SB_HOST_DEVICE inline int64_t ListUnits(int64_t entries, int64_t blocks, int64_t length) {
  return entries / length + blocks;
}

// The last block b with begin(b) / length + b <= unit. All lanes of a warp call it alike.
template <typename Begin>
SB_DEVICE inline int64_t BlockOfUnit(int64_t blocks, int64_t unit, int64_t length, Begin begin) {
  int64_t low = 0;
  int64_t count = blocks;
  while (count > 1) {  // Every round leaves a 32nd of the candidates.
    const int64_t step = CeilDiv(count, 32);
    const int64_t offset = LaneId() * step;
    const bool reached = offset < count && begin(low + offset) / length + low + offset <= unit;
    const int64_t skipped = (CountBits(Ballot(kAllLanes, reached)) - 1) * step;
    low += skipped;
    count = count - skipped < step ? count - skipped : step;
  }
  return low;
}

template <int kRows>
SB_HOST_DEVICE inline int64_t OwnTiles(const DeviceBlocks& blocks) {
  return CeilDiv(blocks.block_tokens, kRows);
}
template <int kRows>
SB_HOST_DEVICE inline int64_t QueryTiles(const DeviceBlocks& blocks, int64_t pairs) {
  return ListUnits(pairs, blocks.blocks, kRows) + blocks.blocks * OwnTiles<kRows>(blocks);
}

struct QueryTile {
  bool own = false;
  int rows = 0;  // none if not above 0
  int64_t block = 0;
  int64_t first = 0;      // query of an own tile; else entry of the head's block lists
  int64_t key_begin = 0;  // first key of the block
  int keys = 0;           // from there on, that any of the rows sees
};

template <int kRows>
SB_DEVICE inline QueryTile FindQueryTile(const AttentionPlan& plan, int64_t head, int64_t unit) {
  const DeviceBlocks& blocks = plan.blocks;
  const int64_t listed = ListUnits(plan.lists.pairs, blocks.blocks, kRows);
  QueryTile tile;
  int64_t left = 0;
  if (unit < listed) {
    const DevicePtr<const int64_t> offsets = plan.lists.block_offsets + head * (blocks.blocks + 1);
    tile.block = BlockOfUnit(blocks.blocks, unit, kRows, [&](int64_t b) { return offsets[b]; });
    const int64_t begin = offsets[tile.block];
    tile.first = begin + (unit - begin / kRows - tile.block) * kRows;
    left = offsets[tile.block + 1] - tile.first;
  } else {
    tile.own = true;
    tile.block = (unit - listed) / OwnTiles<kRows>(blocks);
    tile.first = blocks.block_begin[tile.block] + (unit - listed) % OwnTiles<kRows>(blocks) * kRows;
    left = blocks.block_begin[tile.block + 1] - tile.first;
  }
  tile.rows = left < kRows ? static_cast<int>(left) : kRows;
  tile.key_begin = blocks.block_begin[tile.block];
  const int64_t key_end = tile.own ? tile.first + tile.rows : blocks.block_begin[tile.block + 1];
  tile.keys = static_cast<int>(key_end - tile.key_begin);
  return tile;
}

// The query of a row, and the row of `slots` that its result belongs into.
SB_DEVICE inline int32_t QueryOfRow(const AttentionPlan& plan, const QueryTile& tile, int64_t head,
                                    int row) {
  return tile.own ? static_cast<int32_t>(tile.first + row)
                  : plan.lists.block_queries[head * plan.lists.pairs + tile.first + row];
}
SB_DEVICE inline int64_t SlotOfRow(const AttentionPlan& plan, const QueryTile& tile, int64_t head,
                                   int64_t query) {
  const DeviceLists& lists = plan.lists;
  if (tile.own) return lists.pairs + query;
  const DevicePtr<const int32_t> chosen = lists.query_blocks + head * lists.pairs;
  int64_t low = lists.query_offsets[query];
  int64_t high = lists.query_offsets[query + 1] - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (chosen[middle] < tile.block) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Which of the block's keys a row sees: those up to LastKey, counted from the first. Steps of keys
// up to UnmaskedKeys are seen by all rows of the tile.
SB_DEVICE inline int LastKey(const QueryTile& tile, int row) {
  const int own = static_cast<int>(tile.first - tile.key_begin) + row;
  return tile.own && own < tile.keys ? own : tile.keys - 1;
}
SB_DEVICE inline int UnmaskedKeys(const QueryTile& tile) { return LastKey(tile, 0) + 1; }

// --- copies -------------------------------------------------------------------------------------
// Begins to copy rows of kDim elements; offset(row) is where a row begins in `from`, or negative
// for a row of zeros.
template <int kDim, int kRows, typename T, typename Offset>
SB_DEVICE inline void CopyRows(SharedPtr<T> tile, DevicePtr<const T> from, Offset offset) {
  constexpr int kPieces = kDim / kVector<T>;
  static_assert(kRows * kPieces % kTileThreads == 0);
  SB_UNROLL
  for (int i = 0; i < kRows * kPieces / kTileThreads; ++i) {
    const int piece = i * kTileThreads + LinearThread();
    const int row = piece / kPieces;
    const int d = piece % kPieces * kVector<T>;
    const int64_t begin = offset(row);
    CpAsync<16>(tile + (row * kPitch<T, kDim> + d), begin >= 0 ? from + (begin + d) : from,
                begin >= 0 ? 16 : 0);
  }
}

// --- results of a warp --------------------------------------------------------------------------
// A row of `slots` holds its elements in the order of the registers: lane t of four has the columns
// 8j + 2t and 8j + 2t + 1 of all j, and stores them side by side.
template <int kDim>
SB_HOST_DEVICE inline int ColumnOfElement(int element) {
  const int lane = element / (kDim / 4);
  const int own = element % (kDim / 4);
  return own / 2 * 8 + lane * 2 + own % 2;
}

// Stores row g (half 0) or g + 8 (half 1) of a warp's result times `factor`; `row` is where the
// row begins.
template <int kDim, typename T>
SB_DEVICE inline void StoreSlot(DevicePtr<T> row, const float (&sums)[kDim / 8][4], int half,
                                float factor) {
  constexpr int kJs = kVector<T> / 2;  // results of so many j in 16 bytes
  const DevicePtr<T> to = row + LaneId() % 4 * (kDim / 4);
  SB_UNROLL
  for (int j = 0; j < kDim / 8; j += kJs) {
    float values[kVector<T>];
    SB_UNROLL
    for (int i = 0; i < kJs; ++i) {
      values[2 * i] = sums[j + i][2 * half] * factor;
      values[2 * i + 1] = sums[j + i][2 * half + 1] * factor;
    }
    StoreFloats(to + 2 * j, values);
  }
}

// Two neighbours of a row.
SB_DEVICE inline void StorePair(DevicePtr<float> to, float first, float second) {
  StoreVec(to, float2{first, second});
}
SB_DEVICE inline void StorePair(DevicePtr<Bf16> to, float first, float second) {
  StoreVec(to, PackBf16(first, second));
}

SB_DEVICE inline float QuadMax(float x) {
  x = fmaxf(x, ShflXor(kAllLanes, x, 1));
  return fmaxf(x, ShflXor(kAllLanes, x, 2));
}
SB_DEVICE inline float QuadSum(float x) {
  x += ShflXor(kAllLanes, x, 1);
  return x + ShflXor(kAllLanes, x, 2);
}

// 2^x, on a GPU by its instruction: about 22 bits are right, and results below 2^-126 become 0.
SB_DEVICE inline float Exp2(float x) {
#if defined(__CUDACC__)
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;

}  // namespace sparsebalance::kernels::cuda
