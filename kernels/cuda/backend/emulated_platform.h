#pragma once

// The CUDA backend on an emulated device (kernels/emulation), for tests on machines without a GPU.
//
//   auto backend = CreateEmulatedBackend({.activation_type = ElementType::kBfloat16},
//                                        {.order = emulation::Order::kShuffled});
//
// Every allocation has bounds of its own, and work is done when a call returns. Matrix products,
// which cuBLASLt has on a GPU, are loops of the host here; all else runs the kernels.

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/emulation/device.h"

namespace sparsebalance::kernels::cuda {

absl::StatusOr<std::unique_ptr<Backend>> CreateEmulatedBackend(
    const BackendOptions& options = {}, const emulation::DeviceOptions& device = {});

}  // namespace sparsebalance::kernels::cuda
