#include <cfloat>
#include <cmath>

#include "kernels/cuda/dense/cross_entropy.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// A block takes a row. Short rows would leave most of a large block without work.
constexpr int kLargeBlock = 512;
constexpr int kSmallBlock = 128;
constexpr int64_t kLongRow = 8192;

// The sum of e^(x - max) over some x, and max. Without any x, max is the lowest number rather than
// minus infinity: differences of infinities would be NaN.
struct Softmax {
  float max = -FLT_MAX;
  float sum = 0;
};

SB_DEVICE inline Softmax Join(const Softmax& a, const Softmax& b) {
  Softmax both;
  both.max = std::fmax(a.max, b.max);
  both.sum = a.sum * std::exp(a.max - both.max) + b.sum * std::exp(b.max - both.max);
  return both;
}

// What this thread's part of a row adds up to.
template <int kBlock, int N, typename T>
SB_DEVICE inline Softmax OwnPart(DevicePtr<const T> in, int64_t classes) {
  Softmax own;
  for (int64_t c = N * LinearThread(); c < classes; c += kBlock * N) {
    float values[N];
    LoadFloats<N>(in + c, values);
    float top = values[0];
    SB_UNROLL
    for (int i = 1; i < N; ++i) top = std::fmax(top, values[i]);
    if (top > own.max) {
      own.sum *= std::exp(own.max - top);
      own.max = top;
    }
    SB_UNROLL
    for (int i = 0; i < N; ++i) own.sum += std::exp(values[i] - own.max);
  }
  return own;
}

// Joins the parts of all threads in one order; every thread gets the result.
template <int kBlock>
SB_DEVICE inline Softmax JoinBlock(Softmax part) {
  SB_SHARED_ARRAY(float, maxima, kBlock / 32);
  SB_SHARED_ARRAY(float, sums, kBlock / 32);
  SB_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    Softmax other;
    other.max = ShflXor(kAllLanes, part.max, mask);
    other.sum = ShflXor(kAllLanes, part.sum, mask);
    part = Join(part, other);
  }
  SyncThreads();  // The row before may still be read from the arrays.
  if (LaneId() == 0) {
    maxima[WarpId()] = part.max;
    sums[WarpId()] = part.sum;
  }
  SyncThreads();
  part = {maxima[0], sums[0]};
  for (int warp = 1; warp < kBlock / 32; ++warp) part = Join(part, {maxima[warp], sums[warp]});
  return part;
}

template <typename T, int N, int kBlock>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kBlock)
    CrossEntropy(int64_t rows, int64_t classes, double loss_scale, DevicePtr<const T> logits,
                 DevicePtr<const int32_t> targets, DevicePtr<const float> weights,
                 DevicePtr<T> logits_grad, DevicePtr<double> losses,
                 DevicePtr<int32_t> bad_targets) {
  for (int64_t row = BlockIdx().x; row < rows; row += GridDim().x) {
    const DevicePtr<const T> in = logits + row * classes;
    const DevicePtr<T> out = logits_grad + row * classes;
    const float weight = weights[row];
    const int64_t target = targets[row];
    // Whole blocks agree on these, so that all threads reach the barriers.
    const bool bad = weight != 0.0F && (target < 0 || target >= classes);
    if (weight == 0.0F || bad) {
      if (LinearThread() == 0) {
        losses[row] = 0;
        if (bad && bad_targets != nullptr) AtomicAdd(bad_targets, 1);
      }
      if (logits_grad == nullptr) continue;
      const float zeros[N] = {};
      for (int64_t c = N * LinearThread(); c < classes; c += kBlock * N) {
        StoreFloats<N>(out + c, zeros);
      }
      continue;
    }
    const Softmax all = JoinBlock<kBlock>(OwnPart<kBlock, N>(in, classes));
    // Where the gradient replaces the logits, a thread replaces only what it alone reads from here
    // on; the target is read by the thread that will replace it.
    const auto scale = static_cast<float>(loss_scale * weight);
    const float factor = scale / all.sum;
    for (int64_t c = N * LinearThread(); c < classes; c += kBlock * N) {
      const bool holds_target = target >= c && target < c + N;
      if (logits_grad == nullptr && !holds_target) continue;
      float values[N];
      LoadFloats<N>(in + c, values);
      if (holds_target) {
        const double logit = ToFloat(in[target]);
        losses[row] = weight * (std::log(static_cast<double>(all.sum)) - (logit - all.max));
      }
      if (logits_grad == nullptr) continue;
      SB_UNROLL
      for (int i = 0; i < N; ++i) {
        const float e = std::exp(values[i] - all.max);
        values[i] = c + i == target ? scale * (e / all.sum - 1.0F) : factor * e;
      }
      StoreFloats<N>(out + c, values);
    }
  }
}

SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    AddLosses(int64_t rows, DevicePtr<const double> losses, DevicePtr<double> loss_sum) {
  double sum = 0;
  for (int64_t row = LinearThread(); row < rows; row += kThreads) sum += losses[row];
  sum = BlockSum<kThreads>(sum);
  if (LinearThread() == 0) loss_sum[0] += sum;
}

}  // namespace

int64_t CrossEntropyScratch(const CrossEntropyShape& shape) {
  return shape.rows * static_cast<int64_t>(sizeof(double));
}

template <typename T>
absl::Status LaunchCrossEntropy(StreamHandle stream, const CrossEntropyShape& shape,
                                DevicePtr<const T> logits, DevicePtr<const int32_t> targets,
                                DevicePtr<const float> weights, DevicePtr<T> logits_grad,
                                DevicePtr<double> loss_sum, DevicePtr<int32_t> bad_targets,
                                DevicePtr<double> scratch) {
  if (shape.rows == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, shape.classes, logits, logits_grad);
  const bool large = shape.classes >= kLongRow;
  auto* const kernel =
      large ? (wide ? CrossEntropy<T, kVector<T>, kLargeBlock> : CrossEntropy<T, 1, kLargeBlock>)
            : (wide ? CrossEntropy<T, kVector<T>, kSmallBlock> : CrossEntropy<T, 1, kSmallBlock>);
  SB_RETURN_IF_ERROR(Launch(kernel,
                            {.grid = {BlocksFor(shape.rows, 1)},
                             .block = {static_cast<unsigned>(large ? kLargeBlock : kSmallBlock)},
                             .name = "cross_entropy"},
                            stream, shape.rows, shape.classes, shape.loss_scale, logits, targets,
                            weights, logits_grad, scratch, bad_targets));
  return Launch(AddLosses, {.block = {kThreads}, .name = "add_losses"}, stream, shape.rows, scratch,
                loss_sum);
}

#define SB_INSTANTIATE(T)                                                                   \
  template absl::Status LaunchCrossEntropy<T>(                                              \
      StreamHandle, const CrossEntropyShape&, DevicePtr<const T>, DevicePtr<const int32_t>, \
      DevicePtr<const float>, DevicePtr<T>, DevicePtr<double>, DevicePtr<int32_t>,          \
      DevicePtr<double>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
