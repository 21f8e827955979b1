#pragma once

#include <cstdint>

namespace sparsebalance::kernels::cpu {

// y = x * r * weight with r = 1 / sqrt(mean(x^2) + epsilon), kept in inverse_rms [rows].
void RmsNormForward(int threads, int64_t rows, int64_t columns, float epsilon, const float* x,
                    const float* weight, float* y, float* inverse_rms);

// Elements of `partials` that RmsNormBackward needs.
int64_t RmsNormPartials(int64_t rows, int64_t columns);

// x_grad += r * (g - x * r^2 * mean(g * x)) with g = y_grad * weight; weight_grad += the sum over
// rows of y_grad * x * r.
void RmsNormBackward(int threads, int64_t rows, int64_t columns, const float* x,
                     const float* weight, const float* inverse_rms, const float* y_grad,
                     float* x_grad, float* weight_grad, float* partials);

// Elements of `partials` that AddColumnSums needs.
int64_t ColumnSumPartials(int64_t rows, int64_t columns);

// out[c] += sum over rows of x [rows, columns].
void AddColumnSums(int threads, int64_t rows, int64_t columns, const float* x, float* out,
                   float* partials);

}  // namespace sparsebalance::kernels::cpu
