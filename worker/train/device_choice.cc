#include "worker/train/device_choice.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/create_backend.h"
#include "kernels/status_macros.h"

namespace sparsebalance {

absl::StatusOr<kernels::ElementType> ChoosePrecision(std::string_view precision,
                                                     std::string_view backend) {
  const bool gpu = backend == "cuda";
  if (precision == "fp32" || (precision == "auto" && !gpu)) return kernels::ElementType::kFloat32;
  if (precision == "auto") return kernels::ElementType::kBfloat16;
  if (precision != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision ", std::string(precision), " is none of auto, fp32 and bf16"));
  }
  if (gpu) return kernels::ElementType::kBfloat16;
  return absl::InvalidArgumentError(
      "--precision bf16 needs a GPU: the CPU backend computes in fp32; use auto or fp32");
}

absl::Status ChooseDevice(TrainOptions& options, size_t ranks,
                          const std::function<void(const std::string&)>& log) {
  const absl::StatusOr<kernels::BackendChoice> chosen = kernels::ChooseBackend(options.backend);
  if (!chosen.ok()) return absl::InvalidArgumentError(chosen.status().message());
  const kernels::BackendChoice& choice = *chosen;
  SB_ASSIGN_OR_RETURN(const kernels::ElementType type,
                      ChoosePrecision(options.precision, choice.name));
  if (options.communicator == "nccl" && choice.name != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--communicator nccl works between GPUs and this node computes on the CPU (",
                     choice.reason, "); use auto or gloo"));
  }
  options.device_name.clear();
  if (choice.name == "cuda") {
    if (ranks > static_cast<size_t>(choice.devices)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "this node has ", ranks, " ranks and ", choice.devices,
          choice.devices == 1 ? " GPU" : " GPUs",
          ", and a rank takes a whole one; start fewer ranks here, or use --backend cpu"));
    }
    // The others are taken to be alike, as a profile is one for the whole job.
    SB_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Backend> first,
                        kernels::CreateBackend(choice.name, {.activation_type = type}));
    options.device_name = std::string(first->device_name());
  }
  const std::string asked = options.backend;
  options.backend = choice.name;
  options.precision = std::string(kernels::ElementTypeName(type));
  // Where it was asked for there is nothing to explain.
  log(absl::StrCat("backend ", choice.name,
                   options.device_name.empty() ? "" : absl::StrCat(" on ", options.device_name),
                   ", ", options.precision,
                   asked == "auto" ? absl::StrCat(" (auto: ", choice.reason, ")") : ""));
  return absl::OkStatus();
}

}  // namespace sparsebalance
