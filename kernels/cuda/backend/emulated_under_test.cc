#include "kernels/cuda/backend/device_under_test.h"
#include "kernels/cuda/backend/emulated_platform.h"

namespace sparsebalance::kernels::cuda {

absl::StatusOr<std::unique_ptr<Backend>> MakeBackendUnderTest(const BackendOptions& options,
                                                              int order) {
  return CreateEmulatedBackend(options, {.order = static_cast<emulation::Order>(order), .seed = 3});
}

}  // namespace sparsebalance::kernels::cuda
