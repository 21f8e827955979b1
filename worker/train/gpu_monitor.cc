#include "worker/train/gpu_monitor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace sparsebalance {

std::unique_ptr<GpuMonitor> GpuMonitor::Create(std::string_view bus_id, Log log) {
  auto loaded = GpuInfo::Load();
  if (!loaded.ok()) {
    return std::make_unique<GpuMonitor>(
        [status = loaded.status()]() -> absl::StatusOr<GpuFacts> { return status; },
        std::move(log));
  }
  // A std::function is copyable, so its state is shared.
  std::shared_ptr<GpuInfo> info = *std::move(loaded);
  return std::make_unique<GpuMonitor>(
      [info, bus_id = std::string(bus_id)] { return info->ReadByPciBusId(bus_id); },
      std::move(log));
}

const std::optional<GpuFacts>& GpuMonitor::Poll(absl::Time now) {
  if (now < next_) return facts_;
  next_ = now + absl::Seconds(1);
  absl::StatusOr<GpuFacts> read = read_();
  if (!read.ok()) {
    if (!failed_) {
      log_(absl::StrCat("the GPU's memory and clocks are not known: ", read.status().message()));
    }
    failed_ = true;
    facts_.reset();
    return facts_;
  }
  failed_ = false;
  facts_ = *std::move(read);
  const bool throttled = IsThrottled(*facts_);
  if (throttled != throttled_) {
    log_(throttled ? absl::StrCat(facts_->name, " holds its clocks back (",
                                  absl::StrJoin(facts_->throttle_reasons, ", "),
                                  "): steps on this rank take longer")
                   : absl::StrCat(facts_->name, " runs at full clocks again"));
  }
  throttled_ = throttled;
  return facts_;
}

}  // namespace sparsebalance
