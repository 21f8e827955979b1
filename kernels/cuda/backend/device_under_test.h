#pragma once

// The CUDA backend that a test is built for. The same tests run on the emulated device
// (emulated_under_test.cc), everywhere, and on a GPU (gpu_under_test.cc), by
// tests/gpu/run_on_gpu.sh.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::cuda {

// `order`, from 0 to kThreadOrders - 1: of the emulation's threads; a GPU has an order of its own.
inline constexpr int kThreadOrders = 3;
absl::StatusOr<std::unique_ptr<Backend>> MakeBackendUnderTest(const BackendOptions& options,
                                                              int order = 0);

}  // namespace sparsebalance::kernels::cuda
