#pragma once

// A real GPU for CudaBackend: memory from stream-ordered pools of the CUDA runtime, one a purpose,
// copies through pinned memory, products by cuBLASLt. Nothing in it waits for the device but copies
// to the host, Elapsed and Synchronize; copies to the device wait only when they have lapped the
// pinned memory.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/backend/platform.h"

namespace sparsebalance::kernels::cuda {

// FAILED_PRECONDITION, in one sentence that says what to do: there is no GPU or no driver, `device`
// is none of them, or it is older than these kernels (compute capability 8.0).
absl::StatusOr<std::unique_ptr<Platform>> CreateCudaPlatform(int device);

}  // namespace sparsebalance::kernels::cuda
