#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace sparsebalance::kernels::cpu {
namespace {

float RowMax(const float* x, int64_t n) {
  float max = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  if (n >= kLanes) {
    Vec v = Load(x);
    for (i = kLanes; i + kLanes <= n; i += kLanes) v = Max(v, Load(x + i));
    max = HorizontalMax(v);
  }
  for (; i < n; ++i) max = std::max(max, x[i]);
  return max;
}

// y = e^(x - max), or only its sum where y is null.
double ExpSum(const float* x, int64_t n, float max, float* y) {
  double sum = 0;
  Vec partial = {};
  int64_t i = 0;
  for (int64_t piece = 0; i + kLanes <= n; i += kLanes) {
    const Vec e = Exp(Load(x + i) - max);
    if (y != nullptr) Store(y + i, e);
    partial += e;
    if (++piece == 64) {  // large vocabularies would lose digits in one long float sum
      sum += HorizontalSum(partial);
      partial = Vec{};
      piece = 0;
    }
  }
  sum += HorizontalSum(partial);
  for (; i < n; ++i) {
    const float e = std::exp(x[i] - max);
    if (y != nullptr) y[i] = e;
    sum += e;
  }
  return sum;
}

}  // namespace

void CrossEntropy(int threads, int64_t rows, int64_t classes, double loss_scale,
                  const float* logits, const int32_t* targets, const float* weights,
                  float* logits_grad, double* row_losses, double* loss_sum) {
  ParallelRanges(threads, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = logits + r * classes;
      float* grad = logits_grad == nullptr ? nullptr : logits_grad + r * classes;
      row_losses[r] = 0;
      if (weights[r] == 0.0F) {
        if (grad != nullptr) std::fill_n(grad, classes, 0.0F);
        continue;
      }
      const float max = RowMax(x, classes);
      const double target = static_cast<double>(x[targets[r]]) - max;
      const double sum = ExpSum(x, classes, max, grad);
      row_losses[r] = weights[r] * (std::log(sum) - target);
      if (grad == nullptr) continue;
      const double scale = loss_scale * weights[r];
      const auto factor = static_cast<float>(scale / sum);
      const double probability = grad[targets[r]] / sum;
      for (int64_t c = 0; c < classes; ++c) grad[c] *= factor;
      grad[targets[r]] = static_cast<float>(scale * (probability - 1.0));
    }
  });
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) total += row_losses[r];
  *loss_sum += total;
}

}  // namespace sparsebalance::kernels::cpu
