#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// out = a + b; out may be a or b.
void Add(int threads, int64_t count, const float* a, const float* b, float* out);
void Scale(int threads, int64_t count, float factor, float* x);
void Fill(int threads, int64_t count, float value, float* x);
void Copy(int threads, int64_t bytes, const void* from, void* to);

// As Backend::Dropout.
void Dropout(int threads, const DropoutShape& shape, const uint64_t* keys, const float* x,
             float* y);

// Doubles of `partials` that SquaredNorm needs.
int64_t SquaredNormPartials(int64_t count);
// Sum of x^2 in double, in an order that depends on `count` alone.
double SquaredNorm(int threads, int64_t count, const float* x, double* partials);

}  // namespace sparsebalance::kernels::cpu
