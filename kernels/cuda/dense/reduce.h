#pragma once

// Sums on a GPU, as Backend says. T: float or Bf16. Orders depend on shapes alone, and there are no
// atomics. Nothing here allocates or waits for the device.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// Bytes of scratch.
int64_t AddColumnSumsScratch(int64_t rows, int64_t columns);
// out [columns] += the sum over rows of x [rows, columns], in float.
template <typename T>
absl::Status LaunchAddColumnSums(StreamHandle stream, int64_t rows, int64_t columns,
                                 DevicePtr<const T> x, DevicePtr<float> out,
                                 DevicePtr<float> scratch);

// Bytes of scratch.
int64_t AddSquaredNormScratch(int64_t count);
// out[0] += the sum of x^2, in double.
template <typename T>
absl::Status LaunchAddSquaredNorm(StreamHandle stream, int64_t count, DevicePtr<const T> x,
                                  DevicePtr<double> out, DevicePtr<double> scratch);

}  // namespace sparsebalance::kernels::cuda
