#include "kernels/emulation/grid.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/emulation/executor.h"

namespace sparsebalance::kernels::emulation {

absl::Status CheckLaunch(const cuda::LaunchConfig& config, const DeviceLimits& limits) {
  const Dim3& grid = config.grid;
  const Dim3& block = config.block;
  const auto refuse = [&](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat("kernel '", config.name, "': ", what));
  };
  const int64_t threads = int64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) {
    return refuse("a grid and a block have at least one of everything");
  }
  if (grid.x > 0x7FFFFFFFU || grid.y > 65535 || grid.z > 65535) {
    return refuse(absl::StrCat("a grid of ", ToString(grid),
                               " blocks; a device takes [2147483647, 65535, 65535]"));
  }
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > limits.threads_per_block) {
    return refuse(absl::StrCat("a block of ", ToString(block), " threads, ", threads,
                               " in all; a device takes [1024, 1024, 64] and ",
                               limits.threads_per_block, " in all"));
  }
  if (config.dynamic_shared_bytes < 0 || config.dynamic_shared_bytes > limits.shared_bytes) {
    return refuse(absl::StrCat(config.dynamic_shared_bytes,
                               " bytes of dynamic shared memory; a block of this device has ",
                               limits.shared_bytes));
  }
  return absl::OkStatus();
}

BlockOrder::BlockOrder(int64_t blocks, Order order, uint64_t seed) : blocks_(blocks) {
  if (order == Order::kReversed) {
    next_ = blocks - 1;
    stride_ = blocks - 1;
  } else if (order == Order::kShuffled) {
    next_ = static_cast<int64_t>(seed % static_cast<uint64_t>(blocks));
    stride_ = std::max<int64_t>(blocks * 5 / 8, 1);
    while (std::gcd(stride_, blocks) != 1) ++stride_;
  }
}

int64_t BlockOrder::Next() {
  const int64_t block = next_;
  next_ = (next_ + stride_) % blocks_;
  return block;
}

}  // namespace sparsebalance::kernels::emulation
