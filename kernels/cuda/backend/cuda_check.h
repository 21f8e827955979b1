#pragma once

// Every call of the CUDA runtime and of cuBLASLt is checked with these. The status says where the
// call is, what it was, on which device, and what the library says:
//
//   kernels/cuda/backend/cuda_platform.cc:88: cudaMallocFromPoolAsync(...) on device 0: out of
//   memory (cudaErrorMemoryAllocation)

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sparsebalance::kernels::cuda {

// RESOURCE_EXHAUSTED for memory, FAILED_PRECONDITION where there is no usable device or driver,
// else INTERNAL. The code is not cudaSuccess.
absl::Status CudaError(cudaError_t code, std::string_view call, const char* file, int line);
// RESOURCE_EXHAUSTED for memory, UNIMPLEMENTED where cuBLASLt does not have the product, else
// INTERNAL.
absl::Status CublasError(cublasStatus_t code, std::string_view call, const char* file, int line);

#define SB_CUDA_RETURN_IF_ERROR(call)                                                            \
  do {                                                                                           \
    const cudaError_t sb_cuda_code = (call);                                                     \
    if (sb_cuda_code != cudaSuccess) {                                                           \
      return ::sparsebalance::kernels::cuda::CudaError(sb_cuda_code, #call, __FILE__, __LINE__); \
    }                                                                                            \
  } while (false)

#define SB_CUBLAS_RETURN_IF_ERROR(call)                                                   \
  do {                                                                                    \
    const cublasStatus_t sb_cublas_code = (call);                                         \
    if (sb_cublas_code != CUBLAS_STATUS_SUCCESS) {                                        \
      return ::sparsebalance::kernels::cuda::CublasError(sb_cublas_code, #call, __FILE__, \
                                                         __LINE__);                       \
    }                                                                                     \
  } while (false)

}  // namespace sparsebalance::kernels::cuda
