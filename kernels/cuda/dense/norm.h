#pragma once

// RMSNorm on a GPU: y = x * r * weight with r = 1 / sqrt(mean(x^2) + epsilon), as Backend says.
//
// T: x, y and their gradients; W: the weight. <float, float>, <Bf16, float> and <Bf16, Bf16> exist.
// Sums are made in float. Matrices are [rows, columns], without gaps. Nothing here allocates or
// waits for the device.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// inverse_rms [rows] receives r.
template <typename T, typename W>
absl::Status LaunchRmsNormForward(StreamHandle stream, const NormShape& shape, DevicePtr<const T> x,
                                  DevicePtr<const W> weight, DevicePtr<T> y,
                                  DevicePtr<float> inverse_rms);

// Bytes of scratch that a backward pass with a weight gradient needs; without one it needs none.
int64_t RmsNormBackwardScratch(const NormShape& shape);

// x_grad += the gradient; weight_grad [columns] += the sum over rows, in an order that depends on
// the shape alone, unless it is null. Then scratch may be null, too.
template <typename T, typename W>
absl::Status LaunchRmsNormBackward(StreamHandle stream, const NormShape& shape,
                                   DevicePtr<const T> x, DevicePtr<const W> weight,
                                   DevicePtr<const float> inverse_rms, DevicePtr<const T> y_grad,
                                   DevicePtr<T> x_grad, DevicePtr<float> weight_grad,
                                   DevicePtr<float> scratch);

}  // namespace sparsebalance::kernels::cuda
