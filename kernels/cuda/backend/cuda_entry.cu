// For nvcc only: CudaBackend is compiled otherwise for the emulation.

#include <utility>

#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/backend/cuda_entry.h"
#include "kernels/cuda/backend/cuda_platform.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options) {
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Platform> platform, CreateCudaPlatform(options.device));
  return CudaBackend::Create(std::move(platform), options);
}

}  // namespace sparsebalance::kernels::cuda
