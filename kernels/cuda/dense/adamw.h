#pragma once

// AdamW on a GPU, as Backend says, on float master weights and moments. G: the gradient's type,
// float or Bf16. Nothing here allocates or waits for the device.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// All have `count` elements. `copy` receives the new values rounded to Bf16, for the next forward
// pass, and may be null. INVALID_ARGUMENT: args.step is below 1.
template <typename G>
absl::Status LaunchAdamW(StreamHandle stream, int64_t count, const AdamWArgs& args,
                         DevicePtr<const G> grad, DevicePtr<float> value, DevicePtr<float> m,
                         DevicePtr<float> v, DevicePtr<Bf16> copy);

}  // namespace sparsebalance::kernels::cuda
