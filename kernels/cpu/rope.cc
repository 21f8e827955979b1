#include "kernels/cpu/rope.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace sparsebalance::kernels::cpu {

void RopeTable(int threads, int64_t tokens, int head_dim, double theta, const int32_t* positions,
               float* table) {
  const int half = head_dim / 2;
  std::vector<double> frequency(half);
  for (int i = 0; i < half; ++i) frequency[i] = std::pow(theta, -2.0 * i / head_dim);
  ParallelRanges(threads, tokens, 256, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = table + t * head_dim;
      for (int i = 0; i < half; ++i) {
        const double angle = positions[t] * frequency[i];
        row[i] = static_cast<float>(std::cos(angle));
        row[half + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

void Rope(int threads, int64_t tokens, int num_heads, int head_dim, int64_t row_stride,
          const float* table, bool inverse, float* x) {
  const int half = head_dim / 2;
  const float sign = inverse ? -1.0F : 1.0F;
  ParallelRanges(threads, tokens, 256, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cosine = table + t * head_dim;
      const float* sine = cosine + half;
      for (int h = 0; h < num_heads; ++h) {
        float* low = x + t * row_stride + h * head_dim;
        float* high = low + half;
#pragma omp simd
        for (int i = 0; i < half; ++i) {
          const float a = low[i];
          const float b = high[i];
          low[i] = a * cosine[i] - sign * b * sine[i];
          high[i] = b * cosine[i] + sign * a * sine[i];
        }
      }
    }
  });
}

}  // namespace sparsebalance::kernels::cpu
