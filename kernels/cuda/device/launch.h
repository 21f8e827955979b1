#pragma once

// How host code starts a kernel, the same on a GPU and in the emulation:
//
//   SB_RETURN_IF_ERROR(Launch(Scale, {.grid = {blocks}, .block = {256}, .name = "scale"}, stream,
//                             x, n, factor));
//
// The arguments are converted to the kernel's parameters. On a GPU the call returns when the kernel
// is queued, and an error of the kernel shows at a later call. The emulation runs it at once:
// FAILED_PRECONDITION says which limit of the device the launch or the kernel exceeds, INTERNAL
// what the kernel did wrong, with the names of kernel, block and thread.

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/launch_config.h"
#include "kernels/cuda/device/types.h"
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "kernels/emulation/device.h"
#endif

namespace sparsebalance::kernels::cuda {

#if defined(__CUDACC__)
using StreamHandle = cudaStream_t;
#else
using StreamHandle = emulation::Device*;
#endif

template <typename... Params, typename... Args>
absl::Status Launch(void (*kernel)(Params...), const LaunchConfig& config, StreamHandle stream,
                    Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "the kernel has other parameters");
#if defined(__CUDACC__)
  const auto error = [&](cudaError_t code) {
    if (code == cudaSuccess) return absl::OkStatus();
    int device = -1;
    cudaGetDevice(&device);
    return absl::InternalError(absl::StrCat("launch of kernel '", config.name, "' on device ",
                                            device, ": ", cudaGetErrorString(code), " (",
                                            cudaGetErrorName(code), ")"));
  };
  // A kernel gets 48 KiB of shared memory, what it declares included, unless it asks for more: from
  // here it cannot be seen how much that is.
  if (config.dynamic_shared_bytes > 0) {
    const cudaError_t code = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(config.dynamic_shared_bytes));
    if (code != cudaSuccess) return error(code);
  }
  kernel<<<dim3(config.grid.x, config.grid.y, config.grid.z),
           dim3(config.block.x, config.block.y, config.block.z),
           static_cast<size_t>(config.dynamic_shared_bytes), stream>>>(
      static_cast<Params>(std::forward<Args>(args))...);
  return error(cudaGetLastError());
#else
  const std::tuple<std::decay_t<Params>...> values(std::forward<Args>(args)...);
  auto body = [&kernel, &values] { std::apply(kernel, values); };
  return stream->Run(
      config, [](void* closure) { (*static_cast<decltype(body)*>(closure))(); }, &body);
#endif
}

}  // namespace sparsebalance::kernels::cuda
