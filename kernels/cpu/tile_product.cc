#include "kernels/cpu/tile_product.h"

#include "kernels/cpu/simd.h"

namespace sparsebalance::kernels::cpu {
namespace {

// As many accumulators as fill the registers, with room for one row of b and a broadcast.
#if defined(__AVX512F__)
constexpr int kMaxVectors = 4;
constexpr int RowsFor(int vectors) { return vectors == 4 ? 6 : vectors == 3 ? 8 : 12; }
#else
constexpr int kMaxVectors = 2;
constexpr int RowsFor(int vectors) { return vectors == 2 ? 6 : 12; }
#endif

template <int kRows, int kVectors>
inline void RegisterTile(int64_t depth, LeftOperand a, const float* b, int64_t b_stride, float* c,
                         int64_t c_stride, bool accumulate) {
  Vec sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = accumulate ? Load(c + i * c_stride + v * kLanes) : Vec{};
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    Vec right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = Load(b + p * b_stride + v * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Vec left = Broadcast(a.data[i * a.row_stride + p * a.column_stride]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) Store(c + i * c_stride + v * kLanes, sum[i][v]);
  }
}

// The last rows, fewer than a full register tile.
template <int kRows, int kVectors>
inline void TailRows(int64_t rows, int64_t depth, LeftOperand a, const float* b, int64_t b_stride,
                     float* c, int64_t c_stride, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      RegisterTile<kRows, kVectors>(depth, a, b, b_stride, c, c_stride, accumulate);
    } else {
      TailRows<kRows - 1, kVectors>(rows, depth, a, b, b_stride, c, c_stride, accumulate);
    }
  }
}

template <int kVectors>
void ColumnPanel(int64_t rows, int64_t depth, LeftOperand a, const float* b, int64_t b_stride,
                 float* c, int64_t c_stride, bool accumulate) {
  constexpr int kRows = RowsFor(kVectors);
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    RegisterTile<kRows, kVectors>(depth, a, b, b_stride, c + i * c_stride, c_stride, accumulate);
    a.data += kRows * a.row_stride;
  }
  TailRows<kRows - 1, kVectors>(rows - i, depth, a, b, b_stride, c + i * c_stride, c_stride,
                                accumulate);
}

}  // namespace

void TileProduct(int64_t rows, int64_t columns, int64_t depth, LeftOperand a, const float* b,
                 int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  constexpr int kPanel = kMaxVectors * kLanes;
  int64_t j = 0;
  for (; j + kPanel <= columns; j += kPanel) {
    ColumnPanel<kMaxVectors>(rows, depth, a, b + j, b_stride, c + j, c_stride, accumulate);
  }
  const int64_t vectors = (columns - j) / kLanes;
#if defined(__AVX512F__)
  if (vectors == 3) {
    ColumnPanel<3>(rows, depth, a, b + j, b_stride, c + j, c_stride, accumulate);
  } else if (vectors == 2) {
    ColumnPanel<2>(rows, depth, a, b + j, b_stride, c + j, c_stride, accumulate);
  }
#endif
  if (vectors == 1) {
    ColumnPanel<1>(rows, depth, a, b + j, b_stride, c + j, c_stride, accumulate);
  }
}

}  // namespace sparsebalance::kernels::cpu
