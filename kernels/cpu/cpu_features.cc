#include "kernels/cpu/cpu_features.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sparsebalance::kernels::cpu {

const std::vector<std::string>& CpuFeatureNames() {
  static const auto* const names = new std::vector<std::string> {
#if defined(__x86_64__)
    "avx", "avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl",
#endif
  };
  return *names;
}

uint32_t MachineFeatures() {
  uint32_t features = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The compiler wants the names as literals.
  features |= __builtin_cpu_supports("avx") ? 1u << 0 : 0;
  features |= __builtin_cpu_supports("avx2") ? 1u << 1 : 0;
  features |= __builtin_cpu_supports("fma") ? 1u << 2 : 0;
  features |= __builtin_cpu_supports("bmi2") ? 1u << 3 : 0;
  features |= __builtin_cpu_supports("avx512f") ? 1u << 4 : 0;
  features |= __builtin_cpu_supports("avx512bw") ? 1u << 5 : 0;
  features |= __builtin_cpu_supports("avx512dq") ? 1u << 6 : 0;
  features |= __builtin_cpu_supports("avx512vl") ? 1u << 7 : 0;
#endif
  return features;
}

absl::Status CheckCpuFeatures(uint32_t compiled, uint32_t machine) {
  std::vector<std::string> missing;
  for (size_t bit = 0; bit < CpuFeatureNames().size(); ++bit) {
    if ((compiled & ~machine) >> bit & 1) missing.push_back(CpuFeatureNames()[bit]);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("backend \"cpu\": its kernels were compiled for ", absl::StrJoin(missing, ", "),
                   ", which this machine's CPU does not have; build on this machine, or for any of "
                   "the last ten years with cmake -DSPARSEBALANCE_CPU_ARCH=portable"));
}

}  // namespace sparsebalance::kernels::cpu
