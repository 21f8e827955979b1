#pragma once

// Backends by name: "cpu", "cuda", or "auto", which is CUDA where this build and this machine have
// it, else the CPU.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels {

struct BackendChoice {
  std::string name;    // "cpu" or "cuda"
  std::string reason;  // for people: "2 GPUs can be used", "this build has no CUDA kernels"
  int devices = 0;     // GPUs that can be used; 0 with "cpu"
};

// Which backend `name` stands for on this machine. An error where "cuda" was asked for and cannot
// be had: UNIMPLEMENTED in a build without CUDA kernels, FAILED_PRECONDITION on a machine without a
// GPU; INVALID_ARGUMENT for other names.
absl::StatusOr<BackendChoice> ChooseBackend(std::string_view name);

// Errors as those of ChooseBackend, and those of the backend itself.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options = {});

// How the CUDA backend is made, from the library that has it (all_backends.h): this one is built
// without CUDA.
struct CudaSupport {
  std::function<absl::StatusOr<int>()> count_devices;
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions&)> create;
};
// Before any thread creates a backend.
void RegisterCuda(CudaSupport support);

}  // namespace sparsebalance::kernels
