#pragma once

// Add, scale, fill, conversion and dropout on a GPU, as Backend says. T: float or Bf16; arithmetic
// is in float. Nothing here allocates or waits for the device.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// out = a + b; out may be a or b.
template <typename T>
absl::Status LaunchAdd(StreamHandle stream, int64_t count, DevicePtr<const T> a,
                       DevicePtr<const T> b, DevicePtr<T> out);

template <typename T>
absl::Status LaunchScale(StreamHandle stream, int64_t count, float factor, DevicePtr<T> x);

template <typename T>
absl::Status LaunchFill(StreamHandle stream, int64_t count, float value, DevicePtr<T> x);

// to = from, rounded to nearest where To has fewer bits. <float, Bf16> and <Bf16, float> exist.
template <typename From, typename To>
absl::Status LaunchConvert(StreamHandle stream, int64_t count, DevicePtr<const From> from,
                           DevicePtr<To> to);

// The mask is that of dropout_mask.h, bit by bit. y may be x, unless it accumulates.
// INVALID_ARGUMENT: the rate is not in [0, 1).
template <typename T>
absl::Status LaunchDropout(StreamHandle stream, const DropoutShape& shape,
                           DevicePtr<const uint64_t> keys, DevicePtr<const T> x, DevicePtr<T> y);

}  // namespace sparsebalance::kernels::cuda
