#pragma once

// Weighted cross-entropy and its gradient on a GPU, as Backend says, without a tensor of
// probabilities: one pass over a row finds its maximum and the sum of exponentials, a second one
// writes the gradient. T: float or Bf16. Nothing here allocates or waits for the device.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// Bytes of scratch: one loss a row.
int64_t CrossEntropyScratch(const CrossEntropyShape& shape);

// loss_sum[0] += the loss, in double and in an order that depends on the shape alone. logits_grad
// may be logits, or null. A row of weight 0 has loss and gradient 0 whatever its logits and target.
// Targets outside of [0, classes) of other rows give 0 as well, and are counted into
// bad_targets[0], unless that is null.
template <typename T>
absl::Status LaunchCrossEntropy(StreamHandle stream, const CrossEntropyShape& shape,
                                DevicePtr<const T> logits, DevicePtr<const int32_t> targets,
                                DevicePtr<const float> weights, DevicePtr<T> logits_grad,
                                DevicePtr<double> loss_sum, DevicePtr<int32_t> bad_targets,
                                DevicePtr<double> scratch);

}  // namespace sparsebalance::kernels::cuda
