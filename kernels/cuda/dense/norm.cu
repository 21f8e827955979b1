#include <cmath>

#include "kernels/cuda/dense/column_sums.h"
#include "kernels/cuda/dense/norm.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

template <typename T, typename W, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    RmsNormForward(int64_t rows, int64_t columns, float epsilon, DevicePtr<const T> x,
                   DevicePtr<const W> weight, DevicePtr<T> y, DevicePtr<float> inverse_rms) {
  for (int64_t row = FirstRow(); row < rows; row += RowStep()) {
    const DevicePtr<const T> in = x + row * columns;
    const DevicePtr<T> out = y + row * columns;
    float squares = 0;
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float values[N];
      LoadFloats<N>(in + c, values);
      SB_UNROLL
      for (int i = 0; i < N; ++i) squares += values[i] * values[i];
    }
    const float mean = WarpSum(squares) / static_cast<float>(columns);
    const float scale = 1.0F / std::sqrt(mean + epsilon);
    if (LaneId() == 0) inverse_rms[row] = scale;
    // The row is read again: it has just come through the cache, and has no limit this way.
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float values[N];
      float weights[N];
      LoadFloats<N>(in + c, values);
      LoadFloats<N>(weight + c, weights);
      SB_UNROLL
      for (int i = 0; i < N; ++i) values[i] = values[i] * scale * weights[i];
      StoreFloats<N>(out + c, values);
    }
  }
}

template <typename T, typename W, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    RmsNormInputGrad(int64_t rows, int64_t columns, DevicePtr<const T> x, DevicePtr<const W> weight,
                     DevicePtr<const float> inverse_rms, DevicePtr<const T> y_grad,
                     DevicePtr<T> x_grad) {
  for (int64_t row = FirstRow(); row < rows; row += RowStep()) {
    const DevicePtr<const T> in = x + row * columns;
    const DevicePtr<const T> in_grad = y_grad + row * columns;
    const DevicePtr<T> out = x_grad + row * columns;
    float dot = 0;
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float values[N];
      float weights[N];
      float grads[N];
      LoadFloats<N>(in + c, values);
      LoadFloats<N>(weight + c, weights);
      LoadFloats<N>(in_grad + c, grads);
      SB_UNROLL
      for (int i = 0; i < N; ++i) dot += grads[i] * weights[i] * values[i];
    }
    const float scale = inverse_rms[row];
    const float pull = WarpSum(dot) * scale * scale * scale / static_cast<float>(columns);
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float values[N];
      float weights[N];
      float grads[N];
      float sums[N];
      LoadFloats<N>(in + c, values);
      LoadFloats<N>(weight + c, weights);
      LoadFloats<N>(in_grad + c, grads);
      LoadFloats<N>(out + c, sums);
      SB_UNROLL
      for (int i = 0; i < N; ++i) sums[i] += scale * grads[i] * weights[i] - pull * values[i];
      StoreFloats<N>(out + c, sums);
    }
  }
}

// The rows of a piece, added up: partials [pieces, columns].
template <typename T, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    RmsNormWeightGrad(int64_t rows, int64_t columns, int64_t piece_rows, DevicePtr<const T> x,
                      DevicePtr<const float> inverse_rms, DevicePtr<const T> y_grad,
                      DevicePtr<float> partials) {
  internal::SumPiece<N, /*kAdd=*/false>(rows, columns, piece_rows, partials,
                                        [&](int64_t row, int64_t c, float(&products)[N]) {
                                          float grads[N];
                                          LoadFloats<N>(x + row * columns + c, products);
                                          LoadFloats<N>(y_grad + row * columns + c, grads);
                                          const float scale = inverse_rms[row];
                                          SB_UNROLL
                                          for (int i = 0; i < N; ++i)
                                            products[i] *= grads[i] * scale;
                                        });
}

}  // namespace

template <typename T, typename W>
absl::Status LaunchRmsNormForward(StreamHandle stream, const NormShape& shape, DevicePtr<const T> x,
                                  DevicePtr<const W> weight, DevicePtr<T> y,
                                  DevicePtr<float> inverse_rms) {
  if (shape.rows == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, shape.columns, x, weight, y);
  return Launch(wide ? RmsNormForward<T, W, kVector<T>> : RmsNormForward<T, W, 1>,
                RowsConfig("rms_norm_forward", shape.rows), stream, shape.rows, shape.columns,
                shape.epsilon, x, weight, y, inverse_rms);
}

int64_t RmsNormBackwardScratch(const NormShape& shape) {
  return internal::ColumnSumsBytes(shape.rows, shape.columns);
}

template <typename T, typename W>
absl::Status LaunchRmsNormBackward(StreamHandle stream, const NormShape& shape,
                                   DevicePtr<const T> x, DevicePtr<const W> weight,
                                   DevicePtr<const float> inverse_rms, DevicePtr<const T> y_grad,
                                   DevicePtr<T> x_grad, DevicePtr<float> weight_grad,
                                   DevicePtr<float> scratch) {
  const int64_t rows = shape.rows;
  const int64_t columns = shape.columns;
  if (rows == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, columns, x, weight, y_grad, x_grad);
  SB_RETURN_IF_ERROR(Launch(wide ? RmsNormInputGrad<T, W, kVector<T>> : RmsNormInputGrad<T, W, 1>,
                            RowsConfig("rms_norm_input_grad", rows), stream, rows, columns, x,
                            weight, inverse_rms, y_grad, x_grad));
  if (weight_grad == nullptr) return absl::OkStatus();
  const bool wide_sums = RowsFit(kVector<T>, columns, x, y_grad, scratch);
  SB_RETURN_IF_ERROR(Launch(wide_sums ? RmsNormWeightGrad<T, kVector<T>> : RmsNormWeightGrad<T, 1>,
                            internal::SumConfig("rms_norm_weight_grad", columns,
                                                internal::Pieces(rows), wide_sums ? kVector<T> : 1),
                            stream, rows, columns, internal::PieceRows(rows), x, inverse_rms,
                            y_grad, scratch));
  return internal::LaunchAddPieces(stream, rows, columns, scratch, weight_grad);
}

#define SB_INSTANTIATE(T, W)                                                               \
  template absl::Status LaunchRmsNormForward<T, W>(StreamHandle, const NormShape&,         \
                                                   DevicePtr<const T>, DevicePtr<const W>, \
                                                   DevicePtr<T>, DevicePtr<float>);        \
  template absl::Status LaunchRmsNormBackward<T, W>(                                       \
      StreamHandle, const NormShape&, DevicePtr<const T>, DevicePtr<const W>,              \
      DevicePtr<const float>, DevicePtr<const T>, DevicePtr<T>, DevicePtr<float>,          \
      DevicePtr<float>)
SB_INSTANTIATE(float, float);
SB_INSTANTIATE(Bf16, float);
SB_INSTANTIATE(Bf16, Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
