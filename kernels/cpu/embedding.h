#pragma once

#include <cstdint>

namespace sparsebalance::kernels::cpu {

// out[t] = table[ids[t]], rows of `columns`.
void EmbeddingForward(int threads, int64_t tokens, int64_t columns, const int32_t* ids,
                      const float* table, float* out);

// table_grad[ids[t]] += out_grad[t], in the order of t.
void EmbeddingBackward(int threads, int64_t tokens, int64_t columns, const int32_t* ids,
                       const float* out_grad, float* table_grad);

}  // namespace sparsebalance::kernels::cpu
