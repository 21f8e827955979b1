#pragma once

// The way into the CUDA backend for code that knows nothing of CUDA.

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::cuda {

// GPUs that can be used here. FAILED_PRECONDITION says why there is none: no driver, no device,
// none that is visible.
absl::StatusOr<int> CountDevices();

// On GPU options.device. FAILED_PRECONDITION where it is none of them, or older than these kernels
// (compute capability 8.0).
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options);

}  // namespace sparsebalance::kernels::cuda
