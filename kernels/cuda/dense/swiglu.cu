#include <cmath>

#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/swiglu.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"

namespace sparsebalance::kernels::cuda {
namespace {

// Right for every x: where e^-x is infinite, the quotient is 0.
SB_DEVICE inline float Sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

template <typename T, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    SwiGluForward(int64_t rows, int64_t columns, DevicePtr<const T> gate_up, DevicePtr<T> out) {
  for (int64_t row = FirstRow(); row < rows; row += RowStep()) {
    const DevicePtr<const T> in = gate_up + row * 2 * columns;
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float gate[N];
      float up[N];
      LoadFloats<N>(in + c, gate);
      LoadFloats<N>(in + columns + c, up);
      SB_UNROLL
      for (int i = 0; i < N; ++i) up[i] *= gate[i] * Sigmoid(gate[i]);
      StoreFloats<N>(out + row * columns + c, up);
    }
  }
}

template <typename T, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    SwiGluBackward(int64_t rows, int64_t columns, DevicePtr<const T> gate_up,
                   DevicePtr<const T> out_grad, DevicePtr<T> gate_up_grad) {
  for (int64_t row = FirstRow(); row < rows; row += RowStep()) {
    const DevicePtr<const T> in = gate_up + row * 2 * columns;
    const DevicePtr<T> to = gate_up_grad + row * 2 * columns;
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float gate[N];
      float up[N];
      float grad[N];
      LoadFloats<N>(in + c, gate);
      LoadFloats<N>(in + columns + c, up);
      LoadFloats<N>(out_grad + row * columns + c, grad);
      SB_UNROLL
      for (int i = 0; i < N; ++i) {
        const float s = Sigmoid(gate[i]);
        const float slope = s * (1.0F + gate[i] * (1.0F - s));
        const float gate_grad = grad[i] * up[i] * slope;
        up[i] = grad[i] * gate[i] * s;
        gate[i] = gate_grad;
      }
      StoreFloats<N>(to + c, gate);
      StoreFloats<N>(to + columns + c, up);
    }
  }
}

}  // namespace

template <typename T>
absl::Status LaunchSwiGluForward(StreamHandle stream, int64_t rows, int64_t columns,
                                 DevicePtr<const T> gate_up, DevicePtr<T> out) {
  if (rows == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, columns, gate_up, out);
  return Launch(wide ? SwiGluForward<T, kVector<T>> : SwiGluForward<T, 1>,
                RowsConfig("swiglu_forward", rows), stream, rows, columns, gate_up, out);
}

template <typename T>
absl::Status LaunchSwiGluBackward(StreamHandle stream, int64_t rows, int64_t columns,
                                  DevicePtr<const T> gate_up, DevicePtr<const T> out_grad,
                                  DevicePtr<T> gate_up_grad) {
  if (rows == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, columns, gate_up, out_grad, gate_up_grad);
  return Launch(wide ? SwiGluBackward<T, kVector<T>> : SwiGluBackward<T, 1>,
                RowsConfig("swiglu_backward", rows), stream, rows, columns, gate_up, out_grad,
                gate_up_grad);
}

#define SB_INSTANTIATE(T)                                                                          \
  template absl::Status LaunchSwiGluForward<T>(StreamHandle, int64_t, int64_t, DevicePtr<const T>, \
                                               DevicePtr<T>);                                      \
  template absl::Status LaunchSwiGluBackward<T>(                                                   \
      StreamHandle, int64_t, int64_t, DevicePtr<const T>, DevicePtr<const T>, DevicePtr<T>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
