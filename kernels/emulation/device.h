#pragma once

// A CUDA device that lives in host memory, for tests of kernels on machines without a GPU.
//
//   emulation::Device device({.order = Order::kReversed});
//   auto x = *device.Allocate<float>(n, "x");
//   device.CopyToDevice(host.data(), n, x);
//   absl::Status status = cuda::Launch(Scale, {.grid = {1}, .block = {128}}, &device, x, n, 2.F);
//
// Launches run at once, one block after another, one thread at a time: a thread runs until it waits
// for others, then the order says which one is next. Results do not depend on anything else. Not
// thread-safe.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/launch_config.h"
#include "kernels/emulation/pointer.h"

namespace sparsebalance::kernels::emulation {

class Executor;

// Which of the threads that can run is next, and in which order blocks run. A kernel that is right
// gives the same results in all of them, but for the rounding of atomic sums of floats.
enum class Order { kForward, kReversed, kShuffled };

struct DeviceLimits {
  int64_t threads_per_block = 1024;
  int64_t static_shared_bytes = int64_t{48} << 10;  // of arrays that the kernel declares
  int64_t shared_bytes = int64_t{227} << 10;        // of a block, static and dynamic
};
DeviceLimits Sm80();
DeviceLimits Sm90();

struct DeviceOptions {
  Order order = Order::kForward;
  uint64_t seed = 1;               // of kShuffled
  DeviceLimits limits = {};        // those of sm_90
  int64_t memory_limit_bytes = 0;  // of live allocations; 0: none
  bool poison_allocations = true;  // fills new memory with NaN bytes
};

class Device {
 public:
  explicit Device(const DeviceOptions& options = {});
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Uninitialized memory, aligned to 256 bytes; `name` is for messages. INVALID_ARGUMENT: a
  // negative count; RESOURCE_EXHAUSTED: the limit, or the host, has no more.
  template <typename T>
  absl::StatusOr<Pointer<T, Space::kGlobal>> Allocate(int64_t count, std::string_view name);

  // FAILED_PRECONDITION where it does not point at the begin of a live allocation.
  template <typename T>
  absl::Status Free(Pointer<T, Space::kGlobal> pointer) {
    return FreeRegion(*pointer.region(), pointer.generation(), pointer.offset());
  }

  // Copies of `count` elements. OUT_OF_RANGE where the device's side is not all live memory.
  template <typename T>
  absl::Status CopyToDevice(const std::type_identity_t<T>* from, int64_t count,
                            Pointer<T, Space::kGlobal> to);
  template <typename T>
  absl::Status CopyToHost(Pointer<T, Space::kGlobal> from, int64_t count,
                          std::remove_const_t<T>* to);

  // The checked pointer for an address inside of a live allocation, for code that keeps plain
  // addresses between launches; NOT_FOUND elsewhere.
  template <typename T>
  absl::StatusOr<Pointer<T, Space::kGlobal>> Find(T* address);
  // The address that Find takes, unchecked.
  template <typename T>
  static T* Address(Pointer<T, Space::kGlobal> pointer) {
    return reinterpret_cast<T*>(pointer.region()->data + pointer.offset());
  }

  // Calls body(closure) as every thread of the grid; cuda::Launch is the typed face of this.
  absl::Status Run(const cuda::LaunchConfig& config, void (*body)(void*), void* closure);

  const DeviceOptions& options() const { return options_; }
  int64_t live_bytes() const { return live_bytes_; }
  int64_t live_allocations() const { return static_cast<int64_t>(by_address_.size()); }

 private:
  absl::StatusOr<const Region*> AllocateRegion(int64_t count, int64_t element_bytes,
                                               std::string_view name);
  absl::Status FreeRegion(const Region& region, uint32_t generation, uint64_t offset);
  // Whether `bytes` from `offset` are live memory.
  static absl::Status CheckCopy(const Region& region, uint32_t generation, uint64_t offset,
                                int64_t count, int64_t element_bytes);
  absl::StatusOr<const Region*> FindRegion(const void* address) const;

  const DeviceOptions options_;
  std::deque<Region> regions_;  // pointers keep their addresses
  std::vector<Region*> unused_;
  std::map<const std::byte*, Region*> by_address_;
  int64_t live_bytes_ = 0;
  std::unique_ptr<Executor> executor_;
};

// --- implementation of the templates ------------------------------------------------------------

template <typename T>
absl::StatusOr<Pointer<T, Space::kGlobal>> Device::Allocate(int64_t count, std::string_view name) {
  absl::StatusOr<const Region*> region = AllocateRegion(count, sizeof(T), name);
  if (!region.ok()) return region.status();
  return Pointer<T, Space::kGlobal>(*region, (*region)->generation, 0);
}

template <typename T>
absl::Status Device::CopyToDevice(const std::type_identity_t<T>* from, int64_t count,
                                  Pointer<T, Space::kGlobal> to) {
  static_assert(std::is_trivially_copyable_v<T>);
  absl::Status status = CheckCopy(*to.region(), to.generation(), to.offset(), count, sizeof(T));
  if (status.ok() && count > 0) std::memcpy(Address(to), from, count * sizeof(T));
  return status;
}

template <typename T>
absl::Status Device::CopyToHost(Pointer<T, Space::kGlobal> from, int64_t count,
                                std::remove_const_t<T>* to) {
  static_assert(std::is_trivially_copyable_v<T>);
  absl::Status status =
      CheckCopy(*from.region(), from.generation(), from.offset(), count, sizeof(T));
  if (status.ok() && count > 0) std::memcpy(to, Address(from), count * sizeof(T));
  return status;
}

template <typename T>
absl::StatusOr<Pointer<T, Space::kGlobal>> Device::Find(T* address) {
  absl::StatusOr<const Region*> region = FindRegion(address);
  if (!region.ok()) return region.status();
  const auto offset =
      static_cast<uint64_t>(reinterpret_cast<const std::byte*>(address) - (*region)->data);
  return Pointer<T, Space::kGlobal>(*region, (*region)->generation, offset);
}

}  // namespace sparsebalance::kernels::emulation
