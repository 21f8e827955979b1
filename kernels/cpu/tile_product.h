#pragma once

// Small dense products on tiles that lie in cache, for attention. One product serves both
// orientations of its left operand through its two strides.

#include <cstdint>

namespace sparsebalance::kernels::cpu {

struct LeftOperand {
  const float* data;
  int64_t row_stride;     // between rows of the product
  int64_t column_stride;  // along the summed dimension
};

// c [rows, columns] = or += a [rows, depth] * b [depth, columns]; columns a multiple of kLanes.
void TileProduct(int64_t rows, int64_t columns, int64_t depth, LeftOperand a, const float* b,
                 int64_t b_stride, float* c, int64_t c_stride, bool accumulate);

}  // namespace sparsebalance::kernels::cpu
