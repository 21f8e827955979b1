#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"

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
