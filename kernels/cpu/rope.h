#pragma once

#include <cstdint>

namespace sparsebalance::kernels::cpu {

// table[t] = cos(positions[t] * f_i) for i < d/2, then the sines; f_i = theta^(-2i/d).
void RopeTable(int threads, int64_t tokens, int head_dim, double theta, const int32_t* positions,
               float* table);

// Rotates the pairs (i, i + d/2) of each head of each row in place; by minus the angle if
// `inverse`.
void Rope(int threads, int64_t tokens, int num_heads, int head_dim, int64_t row_stride,
          const float* table, bool inverse, float* x);

}  // namespace sparsebalance::kernels::cpu
