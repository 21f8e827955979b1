#include "kernels/cuda/backend/cuda_check.h"

#include "absl/strings/str_cat.h"

namespace sparsebalance::kernels::cuda {
namespace {

// The path below the source tree is enough to find it.
std::string Where(std::string_view call, const char* file, int line) {
  std::string_view path = file;
  if (const size_t at = path.rfind("kernels/"); at != std::string_view::npos)
    path.remove_prefix(at);
  // Of a call that goes over lines, the first words.
  std::string text(call.substr(0, 100));
  if (call.size() > text.size()) text += "...";
  return absl::StrCat(std::string(path), ":", line, ": ", text);
}

}  // namespace

absl::Status CudaError(cudaError_t code, std::string_view call, const char* file, int line) {
  // Some errors stay until they are read.
  cudaGetLastError();
  int device = -1;
  const bool known = cudaGetDevice(&device) == cudaSuccess;
  const std::string message =
      absl::StrCat(Where(call, file, line), known ? absl::StrCat(" on device ", device) : "", ": ",
                   cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
  switch (code) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status CublasError(cublasStatus_t code, std::string_view call, const char* file, int line) {
  int device = -1;
  const bool known = cudaGetDevice(&device) == cudaSuccess;
  const std::string message =
      absl::StrCat(Where(call, file, line), known ? absl::StrCat(" on device ", device) : "", ": ",
                   cublasLtGetStatusString(code), " (", cublasLtGetStatusName(code), ")");
  switch (code) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(message);
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return absl::UnimplementedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace sparsebalance::kernels::cuda
