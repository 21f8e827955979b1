#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/dropout_mask.h"

namespace sparsebalance::kernels::cpu {
namespace {
constexpr int64_t kPiece = 32768;
}

void Add(int threads, int64_t count, const float* a, const float* b, float* out) {
  ParallelRanges(threads, count, kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = a[i] + b[i];
  });
}

void Scale(int threads, int64_t count, float factor, float* x) {
  ParallelRanges(threads, count, kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] *= factor;
  });
}

void Fill(int threads, int64_t count, float value, float* x) {
  ParallelRanges(threads, count, kPiece,
                 [&](int64_t begin, int64_t end) { std::fill(x + begin, x + end, value); });
}

void Copy(int threads, int64_t bytes, const void* from, void* to) {
  ParallelRanges(threads, bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

void Dropout(int threads, const DropoutShape& shape, const uint64_t* keys, const float* x,
             float* y) {
  const uint32_t threshold = DropoutThreshold(shape.rate);
  const float scale = 1.0F / (1.0F - shape.rate);
  ParallelRanges(threads, shape.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const uint64_t row = DropoutRow(keys[r], shape.site);
      const float* in = x + r * shape.columns;
      float* out = y + r * shape.columns;
      for (int64_t c = 0; c < shape.columns; ++c) {
        const float kept = DropoutKeeps(row, c, threshold) ? in[c] * scale : 0.0F;
        out[c] = shape.accumulate ? out[c] + kept : kept;
      }
    }
  });
}

int64_t SquaredNormPartials(int64_t count) { return (count + kPiece - 1) / kPiece; }

double SquaredNorm(int threads, int64_t count, const float* x, double* partials) {
  ParallelRanges(threads, count, kPiece, [&](int64_t begin, int64_t end) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(x[i]) * x[i];
    partials[begin / kPiece] = sum;
  });
  double total = 0;
  for (int64_t i = 0; i < SquaredNormPartials(count); ++i) total += partials[i];
  return total;
}

}  // namespace sparsebalance::kernels::cpu
