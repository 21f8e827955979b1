#include "kernels/backend.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"

namespace sparsebalance::kernels {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options) {
  if (name == "cpu" || name == "auto") return cpu::CpuBackend::Create(options);
  if (name == "cuda") {
    return absl::UnimplementedError(
        "backend \"cuda\": this build has no CUDA kernels; use \"cpu\" or \"auto\"");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("backend \"", absl::string_view(name.data(), name.size()),
                   "\" is unknown; use \"cpu\", \"cuda\" or \"auto\""));
}

}  // namespace sparsebalance::kernels
