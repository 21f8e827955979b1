#include "kernels/cuda/backend/cuda_entry.h"
#include "kernels/cuda/backend/device_under_test.h"

namespace sparsebalance::kernels::cuda {

absl::StatusOr<std::unique_ptr<Backend>> MakeBackendUnderTest(const BackendOptions& options,
                                                              int /*order*/) {
  return CreateCudaBackend(options);
}

}  // namespace sparsebalance::kernels::cuda
