// What a device can do at most, by what its vendor says of it.
#pragma once

#include <optional>
#include <string_view>

namespace sparsebalance {

// Dense bf16 operations a second of the tensor cores, fp32 accumulation, without structured
// sparsity, at the boost clock: from NVIDIA's data sheets. `device_name` as the driver gives it,
// "NVIDIA H100 80GB HBM3". Nothing for a device that is not listed.
std::optional<double> PeakBf16Flops(std::string_view device_name);

}  // namespace sparsebalance
