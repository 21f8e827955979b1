#pragma once

// What a thread block of the router does with a few queries: their scores, the threshold of the
// largest ones, and how much shared memory that takes.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/block_index.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/attention/warp.h"
#include "kernels/cuda/device/device.h"

namespace sparsebalance::kernels::cuda {

inline constexpr int kRouterThreads = 128;
inline constexpr int kRouterWarps = kRouterThreads / 32;

// Mean keys pass through shared memory in tiles of so many blocks and dimensions, two at a time.
inline constexpr int kMeanTile = 64;
inline constexpr int kMeanDepth = 32;
// Rows are 16 bytes longer than they need to be, so that the rows that a quarter of a warp reads at
// once lie in different banks.
inline constexpr int kMeanRow = kMeanDepth + 4;
inline constexpr int kMeanStage = kMeanTile * kMeanRow;

// Queries that a thread block scores at once. With many, each mean key that is loaded serves more
// of them; with few, the scores of longer sequences fit into shared memory.
inline constexpr int kManyRows = 32;
inline constexpr int kFewRows = 8;

// Where scores do not fit into shared memory, so many thread blocks share the work, each with
// scratch of its own: enough for two on every multiprocessor of the largest devices.
inline constexpr int64_t kScratchWorkers = 264;

SB_HOST_DEVICE inline int PaddedDim(int head_dim) {
  return (head_dim + kMeanDepth - 1) / kMeanDepth * kMeanDepth;
}
SB_HOST_DEVICE inline int QueryRow(int head_dim) { return PaddedDim(head_dim) + 4; }

// Floats of the queries and of the mean keys, which lie first in dynamic shared memory.
SB_HOST_DEVICE inline int64_t TileFloats(int rows, int head_dim) {
  return int64_t{rows} * QueryRow(head_dim) + 2 * kMeanStage;
}

struct RouterMemory {
  int rows = 0;
  bool scores_in_scratch = false;
  int64_t shared_bytes = 0;
};

// `rows`: kManyRows where half of the shared memory will do, so that two thread blocks share a
// multiprocessor, else kFewRows. `reserved` bytes are kept free for static arrays.
inline RouterMemory PlanRouterMemory(int most_rows, int head_dim, int64_t most_blocks,
                                     int64_t shared_limit, int64_t reserved) {
  const auto bytes = [&](int rows, int64_t columns) {
    return (TileFloats(rows, head_dim) + rows * columns) * static_cast<int64_t>(sizeof(float));
  };
  const int64_t available = shared_limit - reserved;
  if (most_rows >= kManyRows && bytes(kManyRows, most_blocks) <= available / 2) {
    return {kManyRows, false, bytes(kManyRows, most_blocks)};
  }
  if (bytes(kFewRows, most_blocks) <= available) {
    return {kFewRows, false, bytes(kFewRows, most_blocks)};
  }
  return {kFewRows, true, bytes(kFewRows, 0)};
}

inline absl::Status CheckRouterShape(const AttentionShape& shape) {
  if (shape.head_dim < 8 || shape.head_dim > 256 || shape.head_dim % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim is ", shape.head_dim, "; the router takes multiples of 8 from 8 to 256"));
  }
  if (shape.num_kv_heads < 1 || shape.num_heads < 1 || shape.num_heads % shape.num_kv_heads != 0 ||
      shape.num_heads > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.num_heads, " heads and ", shape.num_kv_heads,
                     " KV heads; heads must be a multiple of KV heads, at most 65535"));
  }
  if (shape.q_stride % 8 != 0 || shape.kv_stride % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("strides are ", shape.q_stride, " and ",
                                                   shape.kv_stride,
                                                   "; rows must begin at multiples of 8 elements"));
  }
  return absl::OkStatus();
}

// Four neighbours as floats; `from` is a multiple of four elements.
SB_DEVICE inline float4 LoadFour(DevicePtr<const float> from) { return LoadVec<float4>(from); }
SB_DEVICE inline float4 LoadFour(DevicePtr<const Bf16> from) {
  const uint2 words = LoadVec<uint2>(from);
  const auto low = [](uint32_t word) {
    Bf16 half;
    half.bits = static_cast<uint16_t>(word);
    return static_cast<float>(half);
  };
  return {low(words.x), low(words.x >> 16), low(words.y), low(words.y >> 16)};
}

// store(row, block, q . mean) for rows [0, rows) and blocks [0, past). query_row(row) points at a
// query; means at the mean of block 0. All threads call it, with past > 0; stores are visible to
// all on return, and none is made before all threads have come here. `shared` has TileFloats(kRows,
// head_dim) elements.
template <typename T, int kRows, typename QueryRowAt, typename Store>
SB_DEVICE inline void ScoreRows(int head_dim, int rows, QueryRowAt query_row,
                                DevicePtr<const float> means, int64_t past, SharedPtr<float> shared,
                                Store store) {
  static_assert(kRows % 8 == 0);
  constexpr int kRowsOfThread = kRows / 8;
  constexpr int kColumnsOfThread = kMeanTile / 16;
  const int thread = LinearThread();
  const int row_length = QueryRow(head_dim);
  const int padded = PaddedDim(head_dim);
  const SharedPtr<float> queries = shared;
  const SharedPtr<float> mean_tiles = shared + kRows * row_length;

  for (int i = thread; i < kRows * padded / 4; i += kRouterThreads) {
    const int row = i / (padded / 4);
    const int d = i % (padded / 4) * 4;
    const bool exists = row < rows && d < head_dim;
    StoreVec(queries + row * row_length + d,
             exists ? LoadFour(query_row(row) + d) : float4{0.0F, 0.0F, 0.0F, 0.0F});
  }
  const int depth_steps = padded / kMeanDepth;
  const int64_t steps = (past + kMeanTile - 1) / kMeanTile * depth_steps;
  const auto fetch = [&](int64_t step) {
    if (step < steps) {
      const int64_t first = step / depth_steps * kMeanTile;
      const int depth = static_cast<int>(step % depth_steps) * kMeanDepth;
      const SharedPtr<float> stage = mean_tiles + step % 2 * kMeanStage;
      for (int i = thread; i < kMeanTile * kMeanDepth / 4; i += kRouterThreads) {
        const int column = i / (kMeanDepth / 4);
        const int d = i % (kMeanDepth / 4) * 4;
        const bool exists = first + column < past && depth + d < head_dim;
        CpAsync<16>(stage + column * kMeanRow + d,
                    exists ? means + (first + column) * head_dim + depth + d : means,
                    exists ? 16 : 0);
      }
    }
    CpAsyncCommit();
  };

  // A thread has columns 16 apart and rows 8 apart.
  const int first_column = thread % 16;
  const int first_row = thread / 16;
  float sums[kRowsOfThread][kColumnsOfThread] = {};
  fetch(0);
  for (int64_t step = 0; step < steps; ++step) {
    fetch(step + 1);
    CpAsyncWait<1>();
    SyncThreads();
    const int depth = static_cast<int>(step % depth_steps) * kMeanDepth;
    const SharedPtr<const float> mean =
        mean_tiles + (step % 2 * kMeanStage + first_column * kMeanRow);
    const SharedPtr<const float> query = queries + (first_row * row_length + depth);
    SB_UNROLL
    for (int d = 0; d < kMeanDepth; d += 4) {
      float4 columns[kColumnsOfThread];
      SB_UNROLL
      for (int j = 0; j < kColumnsOfThread; ++j) {
        columns[j] = LoadVec<float4>(mean + (16 * j * kMeanRow + d));
      }
      SB_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        const float4 a = LoadVec<float4>(query + (8 * i * row_length + d));
        SB_UNROLL
        for (int j = 0; j < kColumnsOfThread; ++j) {
          sums[i][j] += a.x * columns[j].x;
          sums[i][j] += a.y * columns[j].y;
          sums[i][j] += a.z * columns[j].z;
          sums[i][j] += a.w * columns[j].w;
        }
      }
    }
    if (step % depth_steps == depth_steps - 1) {
      const int64_t first = step / depth_steps * kMeanTile + first_column;
      SB_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        SB_UNROLL
        for (int j = 0; j < kColumnsOfThread; ++j) {
          const int row = first_row + 8 * i;
          if (row < rows && first + 16 * j < past) store(row, first + 16 * j, sums[i][j]);
          sums[i][j] = 0.0F;
        }
      }
    }
    SyncThreads();
  }
}

// The `wanted` largest of keys[0..count) are those above `key`, and the first `ties` of those that
// equal it. All lanes of a warp call it with the same arguments; 0 < wanted < count. Its cost does
// not depend on `wanted`.
struct Threshold {
  int32_t key;
  int ties;
};

template <typename Keys>
SB_DEVICE inline Threshold FindThreshold(Keys keys, int count, int wanted) {
  int32_t low = 0x7FFFFFFF;
  int32_t high = -low - 1;
  for (int i = LaneId(); i < count; i += 32) {
    const int32_t key = keys[i];
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  low = WarpMin(low);
  high = WarpMax(high);
  // Bisection for the largest threshold that at least `wanted` keys reach.
  while (low < high) {
    const auto middle = static_cast<int32_t>((int64_t{low} + high + 1) >> 1);
    int reached = 0;
    for (int i = LaneId(); i < count; i += 32) reached += keys[i] >= middle ? 1 : 0;
    reached = WarpSum(reached);
    if (reached >= wanted) {
      low = middle;
      if (reached == wanted) break;
    } else {
      high = middle - 1;
    }
  }
  int above = 0;
  for (int i = LaneId(); i < count; i += 32) above += keys[i] > low ? 1 : 0;
  return {low, wanted - WarpSum(above)};
}

}  // namespace sparsebalance::kernels::cuda
