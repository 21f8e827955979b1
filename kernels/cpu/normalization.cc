#include "kernels/cpu/normalization.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"

namespace sparsebalance::kernels::cpu {
namespace {

// Sums over rows are made for pieces of this many rows, then added in order: the same result for
// any number of threads, and less rounding than one long sum.
constexpr int64_t kPieceRows = 256;

int64_t Pieces(int64_t rows) { return (rows + kPieceRows - 1) / kPieceRows; }

void AddPieces(int64_t rows, int64_t columns, const float* partials, float* out) {
  for (int64_t piece = 0; piece < Pieces(rows); ++piece) {
    for (int64_t c = 0; c < columns; ++c) out[c] += partials[piece * columns + c];
  }
}

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void RmsNormForward(int threads, int64_t rows, int64_t columns, float epsilon, const float* x,
                    const float* weight, float* y, float* inverse_rms) {
  ParallelRanges(threads, rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* in = x + r * columns;
      const float mean = Dot(in, in, columns) / static_cast<float>(columns);
      const float scale = 1.0F / std::sqrt(mean + epsilon);
      inverse_rms[r] = scale;
      float* out = y + r * columns;
      for (int64_t c = 0; c < columns; ++c) out[c] = in[c] * scale * weight[c];
    }
  });
}

int64_t RmsNormPartials(int64_t rows, int64_t columns) { return Pieces(rows) * columns; }

void RmsNormBackward(int threads, int64_t rows, int64_t columns, const float* x,
                     const float* weight, const float* inverse_rms, const float* y_grad,
                     float* x_grad, float* weight_grad, float* partials) {
  ParallelRanges(threads, rows, kPieceRows, [&](int64_t begin, int64_t end) {
    float* partial = partials + begin / kPieceRows * columns;
    std::fill_n(partial, columns, 0.0F);
    for (int64_t r = begin; r < end; ++r) {
      const float* in = x + r * columns;
      const float* g = y_grad + r * columns;
      float* out = x_grad + r * columns;
      const float scale = inverse_rms[r];
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t c = 0; c < columns; ++c) dot += g[c] * weight[c] * in[c];
      const float pull = dot * scale * scale * scale / static_cast<float>(columns);
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) {
        out[c] += scale * g[c] * weight[c] - pull * in[c];
        partial[c] += g[c] * in[c] * scale;
      }
    }
  });
  if (weight_grad != nullptr) AddPieces(rows, columns, partials, weight_grad);
}

int64_t ColumnSumPartials(int64_t rows, int64_t columns) { return Pieces(rows) * columns; }

void AddColumnSums(int threads, int64_t rows, int64_t columns, const float* x, float* out,
                   float* partials) {
  ParallelRanges(threads, rows, kPieceRows, [&](int64_t begin, int64_t end) {
    float* partial = partials + begin / kPieceRows * columns;
    std::fill_n(partial, columns, 0.0F);
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < columns; ++c) partial[c] += x[r * columns + c];
    }
  });
  AddPieces(rows, columns, partials, out);
}

}  // namespace sparsebalance::kernels::cpu
