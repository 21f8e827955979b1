// What the driver knows of this node's GPUs: names, memory, and why clocks are held back.
//
//   absl::StatusOr<std::unique_ptr<GpuInfo>> info = GpuInfo::Load();
//   if (info.ok()) {
//     absl::StatusOr<GpuFacts> facts = (*info)->Read(0);
//     // facts->name, facts->throttle_reasons ...
//   }
//
// By NVML, NVIDIA's management library, which comes with the driver and not with the toolkit: it is
// loaded when asked for, so that one build runs on machines with and without. Numbering is NVML's,
// by PCI address; CUDA's may differ, so a worker that knows its GPU by CUDA reads it by that
// address.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance {

struct GpuFacts {
  std::string name;  // "NVIDIA A100-SXM4-80GB"
  std::string uuid;  // "GPU-..."
  uint64_t memory_total_bytes = 0;
  uint64_t memory_used_bytes = 0;  // by all processes, the driver's own share included
  // Why the clocks are lower than they might be, in words such as "hw_thermal_slowdown"; empty
  // where nothing holds them back, or where the GPU does not say.
  std::vector<std::string> throttle_reasons;
};

// Names of the bits of nvmlDeviceGetCurrentClocksEventReasons, ascending; a bit that has no name
// here becomes "bit_12".
std::vector<std::string> ThrottleReasonNames(uint64_t bits);

// Whether one of the reasons means that the GPU is too hot or lacks power: the others are settings,
// or a GPU that has nothing to do.
bool IsThrottled(const GpuFacts& facts);

// Thread-safe.
class GpuInfo {
 public:
  // NOT_FOUND where there is no such library, as on a machine without the driver;
  // FAILED_PRECONDITION where it lacks a function or finds no driver that runs.
  static absl::StatusOr<std::unique_ptr<GpuInfo>> Load(
      const std::string& library = "libnvidia-ml.so.1");
  ~GpuInfo();

  int count() const;
  // INVALID_ARGUMENT where `index` is not in [0, count()); INTERNAL with NVML's words.
  absl::StatusOr<GpuFacts> Read(int index) const;
  // As cudaDeviceGetPCIBusId() writes it, "0000:3b:00.0". NOT_FOUND where there is none such.
  absl::StatusOr<GpuFacts> ReadByPciBusId(const std::string& bus_id) const;

 private:
  class Library;
  explicit GpuInfo(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace sparsebalance
