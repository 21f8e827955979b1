#pragma once

// out = silu(gate) * up on a GPU, as Backend says; gate_up [rows, 2 * columns] holds gate, then up.
// T: float or Bf16. Nothing here allocates or waits for the device.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

template <typename T>
absl::Status LaunchSwiGluForward(StreamHandle stream, int64_t rows, int64_t columns,
                                 DevicePtr<const T> gate_up, DevicePtr<T> out);

// Writes (does not add) gate_up_grad, which may be gate_up itself.
template <typename T>
absl::Status LaunchSwiGluBackward(StreamHandle stream, int64_t rows, int64_t columns,
                                  DevicePtr<const T> gate_up, DevicePtr<const T> out_grad,
                                  DevicePtr<T> gate_up_grad);

}  // namespace sparsebalance::kernels::cuda
