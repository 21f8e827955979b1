#include "kernels/emulation/device.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/emulation/executor.h"

namespace sparsebalance::kernels::emulation {

DeviceLimits Sm80() { return {.shared_bytes = int64_t{163} << 10}; }
DeviceLimits Sm90() { return {.shared_bytes = int64_t{227} << 10}; }

Device::Device(const DeviceOptions& options)
    : options_(options), executor_(std::make_unique<Executor>(options_)) {}

Device::~Device() {
  for (Region& region : regions_) std::free(region.data);
}

absl::StatusOr<const Region*> Device::AllocateRegion(int64_t count, int64_t element_bytes,
                                                     std::string_view name) {
  if (count < 0 || count > std::numeric_limits<int64_t>::max() / 2 / element_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an allocation cannot have ", count, " elements"));
  }
  const int64_t bytes = count * element_bytes;
  const int64_t limit = options_.memory_limit_bytes;
  if (limit > 0 && (bytes > limit || live_bytes_ > limit - bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("emulated device memory: ", bytes,
                                                     " bytes wanted, ", limit - live_bytes_, " of ",
                                                     limit, " left"));
  }
  // Never empty, so that every live allocation has an address of its own.
  const uint64_t rounded = (static_cast<uint64_t>(bytes) / kRegionAlignment + 1) * kRegionAlignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kRegionAlignment, rounded));
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the host has no ", bytes, " bytes left"));
  }
  if (options_.poison_allocations) std::memset(data, 0xFF, bytes);
  if (unused_.empty()) unused_.push_back(&regions_.emplace_back());
  Region* region = unused_.back();
  unused_.pop_back();
  region->data = data;
  region->bytes = static_cast<uint64_t>(bytes);
  ++region->generation;
  region->name = std::string(name);
  by_address_[data] = region;
  live_bytes_ += bytes;
  return region;
}

absl::Status Device::FreeRegion(const Region& region, uint32_t generation, uint64_t offset) {
  const auto found = by_address_.find(region.data);
  if (found == by_address_.end() || found->second != &region || generation != region.generation ||
      offset != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("freed what is not the begin of a live allocation; the last one there was '",
                     region.name, "'"));
  }
  Region* own = found->second;
  by_address_.erase(found);
  live_bytes_ -= static_cast<int64_t>(own->bytes);
  std::free(own->data);
  own->data = nullptr;
  own->bytes = 0;
  ++own->generation;  // Pointers into it are stale from here on.
  unused_.push_back(own);
  return absl::OkStatus();
}

absl::Status Device::CheckCopy(const Region& region, uint32_t generation, uint64_t offset,
                               int64_t count, int64_t element_bytes) {
  const bool good = generation == region.generation && count >= 0 && offset <= region.bytes &&
                    static_cast<uint64_t>(count) <=
                        (region.bytes - offset) / static_cast<uint64_t>(element_bytes);
  if (good) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("a copy of ", count, " elements of ", element_bytes, " bytes at byte ", offset,
                   " of '", region.name, "', which ",
                   generation == region.generation ? absl::StrCat("has ", region.bytes, " bytes")
                                                   : std::string("was freed")));
}

absl::StatusOr<const Region*> Device::FindRegion(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  auto after = by_address_.upper_bound(byte);
  if (after != by_address_.begin()) {
    const Region* region = std::prev(after)->second;
    if (static_cast<uint64_t>(byte - region->data) <= region->bytes) return region;
  }
  return absl::NotFoundError("an address outside of the device's memory");
}

absl::Status Device::Run(const cuda::LaunchConfig& config, void (*body)(void*), void* closure) {
  return executor_->Launch(config, body, closure);
}

}  // namespace sparsebalance::kernels::emulation
