// Settles once at start what a node's ranks compute on.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device_buffer.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

// "auto" is bf16 on GPUs, whose tensor cores take it, and fp32 on CPUs; "fp32", "bf16".
// INVALID_ARGUMENT: other names, or bf16 on a CPU.
absl::StatusOr<kernels::ElementType> ChoosePrecision(std::string_view precision,
                                                     std::string_view backend);

// Replaces "auto" in options.backend and options.precision by what this machine has, fills
// options.device_name, and says in one line what was taken and why. INVALID_ARGUMENT where the
// flags ask for what this machine or this build does not have, or the node's `ranks` are more than
// its GPUs.
absl::Status ChooseDevice(TrainOptions& options, size_t ranks,
                          const std::function<void(const std::string&)>& log);

}  // namespace sparsebalance
