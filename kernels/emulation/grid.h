#pragma once

// What a launch may ask for, and in which order its blocks run. Internal to the emulation.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/launch_config.h"
#include "kernels/emulation/device.h"

namespace sparsebalance::kernels::emulation {

// FAILED_PRECONDITION says which limit of the device the launch exceeds.
absl::Status CheckLaunch(const cuda::LaunchConfig& config, const DeviceLimits& limits);

// The blocks of a grid: forward, backward, or by strides that have no common divisor with their
// number.
class BlockOrder {
 public:
  // blocks >= 1.
  BlockOrder(int64_t blocks, Order order, uint64_t seed);

  // Each of [0, blocks) once, then all over again.
  int64_t Next();

 private:
  int64_t blocks_;
  int64_t next_ = 0, stride_ = 1;
};

}  // namespace sparsebalance::kernels::emulation
