#pragma once

// Everything that a kernel uses:
//
//   SB_GLOBAL void Scale(DevicePtr<float> x, int64_t n, float factor) {
//     const int64_t i = GlobalThread();
//     if (i < n) x[i] *= factor;
//   }
//
// launch.h has the host's side.

#include "kernels/cuda/device/async_copy.h"  // IWYU pragma: export
#include "kernels/cuda/device/atomics.h"     // IWYU pragma: export
#include "kernels/cuda/device/bf16.h"        // IWYU pragma: export
#include "kernels/cuda/device/matrix.h"      // IWYU pragma: export
#include "kernels/cuda/device/memory.h"      // IWYU pragma: export
#include "kernels/cuda/device/thread.h"      // IWYU pragma: export
#include "kernels/cuda/device/types.h"       // IWYU pragma: export
