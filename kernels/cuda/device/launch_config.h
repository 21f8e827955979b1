#pragma once

#include <cstdint>

#include "kernels/cuda/device/types.h"

namespace sparsebalance::kernels::cuda {

struct LaunchConfig {
  Dim3 grid, block;
  int64_t dynamic_shared_bytes = 0;
  const char* name = "unnamed";  // for messages
};

}  // namespace sparsebalance::kernels::cuda
