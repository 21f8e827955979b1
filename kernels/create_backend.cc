#include "kernels/create_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels {
namespace {

CudaSupport& Cuda() {
  static CudaSupport* const support = new CudaSupport();
  return *support;
}

constexpr const char* kNoKernels = "this build has no CUDA kernels";

}  // namespace

void RegisterCuda(CudaSupport support) { Cuda() = std::move(support); }

absl::StatusOr<BackendChoice> ChooseBackend(std::string_view name) {
  if (name == "cpu") return BackendChoice{.name = "cpu", .reason = "it was asked for"};
  if (name != "cuda" && name != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("backend \"", absl::string_view(name.data(), name.size()),
                     "\" is unknown; use \"cpu\", \"cuda\" or \"auto\""));
  }
  if (Cuda().create == nullptr) {
    if (name == "auto") return BackendChoice{.name = "cpu", .reason = kNoKernels};
    return absl::UnimplementedError(absl::StrCat(
        "backend \"cuda\": ", kNoKernels, "; build it where CUDA's toolkit is, or use \"cpu\""));
  }
  const absl::StatusOr<int> devices = Cuda().count_devices();
  if (devices.ok()) {
    return BackendChoice{
        .name = "cuda",
        .reason = absl::StrCat(*devices, *devices == 1 ? " GPU" : " GPUs", " can be used"),
        .devices = *devices};
  }
  if (name == "cuda") {
    return absl::Status(
        devices.status().code(),
        absl::StrCat("backend \"cuda\": ", devices.status().message(),
                     "; look at nvidia-smi (in a container: was it started with GPUs?), or use "
                     "\"cpu\""));
  }
  return BackendChoice{.name = "cpu", .reason = std::string(devices.status().message())};
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options) {
  SB_ASSIGN_OR_RETURN(const BackendChoice choice, ChooseBackend(name));
  if (choice.name == "cuda") return Cuda().create(options);
  return cpu::CpuBackend::Create(options);
}

}  // namespace sparsebalance::kernels
