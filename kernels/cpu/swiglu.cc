#include "kernels/cpu/swiglu.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kPieceRows = 64;

// 1 / (1 + e^-x). e^-x is capped where the result would round to 0 in any case.
inline Vec Sigmoid(Vec x) {
  const Vec cap = Broadcast(87.0F);
  const Vec minus = -x;
  return 1.0F / (1.0F + Exp(minus < cap ? minus : cap));
}

// Calls body on whole vectors of a row; the last, partial one goes through zero-padded copies.
template <typename Body>
void ForEachVector(int64_t columns, Body&& body) {
  for (int64_t c = 0; c < columns; c += kLanes) {
    body(c, std::min(kLanes, columns - c));
  }
}

inline Vec LoadPart(const float* p, int64_t count) {
  if (count == kLanes) return Load(p);
  float lanes[kLanes] = {};
  std::copy_n(p, count, lanes);
  return Load(lanes);
}

inline void StorePart(float* p, Vec v, int64_t count) {
  if (count == kLanes) {
    Store(p, v);
    return;
  }
  float lanes[kLanes];
  Store(lanes, v);
  std::copy_n(lanes, count, p);
}

}  // namespace

void SwiGluForward(int threads, int64_t rows, int64_t columns, const float* gate_up, float* out) {
  ParallelRanges(threads, rows, kPieceRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = gate_up + r * 2 * columns;
      const float* up = gate + columns;
      ForEachVector(columns, [&](int64_t c, int64_t count) {
        const Vec g = LoadPart(gate + c, count);
        StorePart(out + r * columns + c, g * Sigmoid(g) * LoadPart(up + c, count), count);
      });
    }
  });
}

void SwiGluBackward(int threads, int64_t rows, int64_t columns, const float* gate_up,
                    const float* out_grad, float* gate_up_grad) {
  ParallelRanges(threads, rows, kPieceRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = gate_up + r * 2 * columns;
      const float* up = gate + columns;
      float* gate_grad = gate_up_grad + r * 2 * columns;
      float* up_grad = gate_grad + columns;
      ForEachVector(columns, [&](int64_t c, int64_t count) {
        const Vec g = LoadPart(gate + c, count);
        const Vec s = Sigmoid(g);
        const Vec dy = LoadPart(out_grad + r * columns + c, count);
        StorePart(up_grad + c, dy * g * s, count);
        const Vec slope = s * (1.0F + g * (1.0F - s));
        StorePart(gate_grad + c, dy * LoadPart(up + c, count) * slope, count);
      });
    }
  });
}

}  // namespace sparsebalance::kernels::cpu
