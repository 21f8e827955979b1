#pragma once

#include <cstdint>

#include "kernels/cuda/device/types.h"

namespace sparsebalance::kernels::cuda {

struct LaunchConfig {
  Dim3 grid, block;
  int64_t dynamic_shared_bytes = 0;
  const char* name = "unnamed";  // for messages
};

// More dynamic shared memory must be asked for by kernel; Launch does.
inline constexpr int64_t kSharedBytesWithoutOptIn = int64_t{48} << 10;

}  // namespace sparsebalance::kernels::cuda
