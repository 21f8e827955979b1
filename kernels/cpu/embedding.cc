#include "kernels/cpu/embedding.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"

namespace sparsebalance::kernels::cpu {

void EmbeddingForward(int threads, int64_t tokens, int64_t columns, const int32_t* ids,
                      const float* table, float* out) {
  ParallelRanges(threads, tokens, 256, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(table + ids[t] * columns, columns, out + t * columns);
    }
  });
}

void EmbeddingBackward(int threads, int64_t tokens, int64_t columns, const int32_t* ids,
                       const float* out_grad, float* table_grad) {
  // Each piece owns some columns of every row: no two threads meet, and a row's sum keeps the
  // order of its tokens.
  ParallelRanges(threads, columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      float* to = table_grad + ids[t] * columns;
      const float* from = out_grad + t * columns;
      for (int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace sparsebalance::kernels::cpu
