#pragma once

// Rotary position embedding on a GPU, as Backend says. Nothing here allocates or waits.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// table [tokens, head_dim]: cosines, then sines. Angles are computed in double: at position 10^5 a
// float would be off by a hundredth of a radian. INVALID_ARGUMENT: head_dim is odd or below 2.
absl::Status LaunchRopeTable(StreamHandle stream, int64_t tokens, int head_dim, double theta,
                             DevicePtr<const int32_t> positions, DevicePtr<float> table);

// Turns the pairs (i, i + head_dim / 2) of every head in place, or back. T: float or Bf16.
template <typename T>
absl::Status LaunchRope(StreamHandle stream, const RopeShape& shape, DevicePtr<const float> table,
                        bool inverse, DevicePtr<T> x);

}  // namespace sparsebalance::kernels::cuda
