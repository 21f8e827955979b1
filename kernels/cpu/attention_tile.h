#pragma once

// What attention forward and backward do on tiles of query rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/simd.h"

namespace sparsebalance::kernels::cpu {

// Queries of the own block are taken in strips of this many rows: the part of the square above the
// diagonal that is computed in vain shrinks with it, the overhead of a product grows.
inline constexpr int64_t kStripRows = 32;

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Rows of a gathered tile: its scores should stay in the first-level cache.
inline int64_t TileRows(int64_t block_tokens) {
  return std::clamp<int64_t>(8192 / RoundUpToLanes(block_tokens), 24, 192) / 12 * 12;
}

// Factor on q that makes scores the base-2 logarithms of the softmax's terms.
inline float ScoreScale(int head_dim) {
  return static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(head_dim)));
}

// to[0..padded) = factor * from[0..dim), then zeros.
inline void CopyRow(const float* from, int dim, float factor, int64_t padded, float* to) {
#pragma omp simd
  for (int i = 0; i < dim; ++i) to[i] = from[i] * factor;
  for (int64_t i = dim; i < padded; ++i) to[i] = 0;
}

// Makes the columns [valid, padded) of a row vanish in a softmax.
inline void MaskTail(float* scores, int64_t valid, int64_t padded) {
  for (int64_t i = valid; i < padded; ++i) scores[i] = kMinusInfinity;
}

// Replaces base-2 scores by 2^(score - max'), max' the larger of `max` and the row's maximum, and
// updates max and the running sum. Returns 2^(max - max'): the factor on what was summed before.
inline float OnlineSoftmaxRow(float* scores, int64_t padded, float* max, float* sum) {
  Vec row_max = Load(scores);
  for (int64_t i = kLanes; i < padded; i += kLanes) row_max = Max(row_max, Load(scores + i));
  const float new_max = std::max(*max, HorizontalMax(row_max));
  Vec row_sum = {};
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Vec p = Exp2(Load(scores + i) - new_max);
    Store(scores + i, p);
    row_sum += p;
  }
  const float keep = std::exp2(*max - new_max);
  *sum = *sum * keep + HorizontalSum(row_sum);
  *max = new_max;
  return keep;
}

// scores := p = 2^(score - lse), grads := p * (grad - delta), over a padded row.
inline void SoftmaxBackwardRow(float* scores, float* grads, int64_t padded, float lse,
                               float delta) {
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Vec p = Exp2(Load(scores + i) - lse);
    Store(scores + i, p);
    Store(grads + i, p * (Load(grads + i) - delta));
  }
}

}  // namespace sparsebalance::kernels::cpu
