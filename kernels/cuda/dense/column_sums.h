#pragma once

// Sums over the rows of a matrix without atomics, in two passes: rows are cut into pieces, blocks
// add the rows of a piece, then the pieces are added in their order. The cut depends on the number
// of rows alone.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/launch.h"

namespace sparsebalance::kernels::cuda::internal {

inline constexpr int64_t kLeastPieceRows = 32;
inline constexpr int64_t kMostPieces = 512;

inline int64_t PieceRows(int64_t rows) {
  return std::max(kLeastPieceRows, (rows + kMostPieces - 1) / kMostPieces);
}
inline int64_t Pieces(int64_t rows) { return (rows + PieceRows(rows) - 1) / PieceRows(rows); }

inline int64_t ColumnSumsBytes(int64_t rows, int64_t columns) {
  return Pieces(rows) * columns * static_cast<int64_t>(sizeof(float));
}

// sums[BlockIdx().y * columns + c] = (or += where kAdd) the sum of a piece's rows. load(row, c,
// values) gives the N values from column c on. A block takes 32 * N columns; each of its warps
// takes every eighth row, and the warps' sums are added in the warps' order.
template <int N, bool kAdd, typename Load>
SB_DEVICE inline void SumPiece(int64_t rows, int64_t columns, int64_t piece_rows,
                               DevicePtr<float> sums, Load load) {
  SB_SHARED_ARRAY(float, warp_sums, kWarps * 32 * N);
  const int64_t begin = int64_t{BlockIdx().y} * piece_rows;
  const int64_t end = begin + piece_rows < rows ? begin + piece_rows : rows;
  const int64_t c = (int64_t{BlockIdx().x} * 32 + LaneId()) * N;
  float sum[N] = {};
  if (c < columns) {
    for (int64_t row = begin + WarpId(); row < end; row += kWarps) {
      float values[N];
      load(row, c, values);
      SB_UNROLL
      for (int i = 0; i < N; ++i) sum[i] += values[i];
    }
  }
  // Lanes lie side by side, so that a warp's accesses fall into different banks.
  SB_UNROLL
  for (int i = 0; i < N; ++i) warp_sums[(WarpId() * N + i) * 32 + LaneId()] = sum[i];
  SyncThreads();
  if (WarpId() == 0 && c < columns) {
    const DevicePtr<float> to = sums + BlockIdx().y * columns + c;
    if constexpr (kAdd) LoadFloats<N>(to, sum);
    SB_UNROLL
    for (int i = 0; i < N; ++i) {
      float total = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        total += warp_sums[(warp * N + i) * 32 + LaneId()];
      }
      sum[i] = kAdd ? sum[i] + total : total;
    }
    StoreFloats<N>(to, sum);
  }
}

inline LaunchConfig SumConfig(const char* name, int64_t columns, int64_t pieces, int n) {
  return {.grid = {static_cast<unsigned>((columns / n + 31) / 32), static_cast<unsigned>(pieces)},
          .block = {kThreads},
          .name = name};
}

template <int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    AddPieces(int64_t pieces, int64_t columns, DevicePtr<const float> partials,
              DevicePtr<float> out) {
  SumPiece<N, /*kAdd=*/true>(pieces, columns, pieces, out,
                             [&](int64_t row, int64_t c, float(&values)[N]) {
                               LoadFloats<N>(partials + row * columns + c, values);
                             });
}

// out [columns] += the sum of the pieces that the first pass of `rows` rows has left.
inline absl::Status LaunchAddPieces(StreamHandle stream, int64_t rows, int64_t columns,
                                    DevicePtr<const float> partials, DevicePtr<float> out) {
  const bool wide = RowsFit(4, columns, partials, out);
  return Launch(wide ? AddPieces<4> : AddPieces<1>,
                SumConfig("add_pieces", columns, 1, wide ? 4 : 1), stream, Pieces(rows), columns,
                partials, out);
}

}  // namespace sparsebalance::kernels::cuda::internal
