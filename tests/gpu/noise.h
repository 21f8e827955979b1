#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/status_macros.h"

namespace sparsebalance::gpu {

// Fills with values in [-1, 1) of a linear congruential generator, always the same.
inline absl::Status FillWithNoise(kernels::Backend& backend, kernels::DeviceBuffer to) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  uint64_t state = 88172645463325252ULL;
  std::vector<float> host;
  for (int64_t begin = 0; begin < to.size(); begin += kPiece) {
    host.resize(static_cast<size_t>(std::min(kPiece, to.size() - begin)));
    for (float& x : host) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      x = static_cast<float>(static_cast<int32_t>(state >> 32)) * 4.656612873e-10F;
    }
    SB_RETURN_IF_ERROR(
        backend.CopyToDevice(host, to.Slice(begin, static_cast<int64_t>(host.size()))));
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::gpu
