// What the driver says of a rank's GPU, for telemetry and for people.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "worker/gpu_info/gpu_info.h"

namespace sparsebalance {

// Reads at most once a second, and says in the log when the GPU begins or ends to hold its clocks
// back for heat or power. Used by one thread.
class GpuMonitor {
 public:
  using Log = std::function<void(const std::string&)>;

  // Of the GPU at a PCI address, by NVML. Where that is not there the monitor says so once and
  // knows nothing.
  static std::unique_ptr<GpuMonitor> Create(std::string_view bus_id, Log log);
  // By any reader: for tests.
  using Read = std::function<absl::StatusOr<GpuFacts>()>;
  GpuMonitor(Read read, Log log) : read_(std::move(read)), log_(std::move(log)) {}

  // The newest facts; nothing while none could be read.
  const std::optional<GpuFacts>& Poll(absl::Time now = absl::Now());

 private:
  const Read read_;
  const Log log_;
  absl::Time next_ = absl::InfinitePast();
  std::optional<GpuFacts> facts_;
  bool throttled_ = false;
  bool failed_ = false;
};

}  // namespace sparsebalance
