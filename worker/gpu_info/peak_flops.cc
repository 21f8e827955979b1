#include "worker/gpu_info/peak_flops.h"

namespace sparsebalance {
namespace {

struct Peak {
  std::string_view name;
  double tflops;
};

// The first entry whose name is part of the device's counts: variants before their family.
constexpr Peak kPeaks[] = {
    {"GH200", 990}, {"H100 NVL", 835}, {"H100 PCIe", 756}, {"H100", 989}, {"H200 NVL", 836},
    {"H200", 989},  {"H800", 989},     {"H20", 148},       {"A100", 312}, {"A800", 312},
    {"B200", 2250}, {"L40S", 362},     {"L4", 121},        {"A10G", 70},  {"A10", 125},
};

}  // namespace

std::optional<double> PeakBf16Flops(std::string_view device_name) {
  for (const Peak& peak : kPeaks) {
    const size_t at = device_name.find(peak.name);
    if (at == std::string_view::npos) continue;
    // "A10" is no part of "A100", nor "L4" of "L40".
    const size_t end = at + peak.name.size();
    if (end < device_name.size() && device_name[end] >= '0' && device_name[end] <= '9') continue;
    return peak.tflops * 1e12;
  }
  return std::nullopt;
}

}  // namespace sparsebalance
