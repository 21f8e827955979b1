#pragma once

// Matrix products by cuBLASLt: bf16 with sums in float, or float without TF32, the bias added in
// the same pass. Algorithms are chosen by cuBLASLt's heuristics and kept by shape, the oldest
// dropped first.

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/backend/platform.h"

namespace sparsebalance::kernels::cuda {

class CublasMatmul {
 public:
  // What cuBLASLt may use beside the operands: what its documentation recommends for Hopper.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  static absl::StatusOr<std::unique_ptr<CublasMatmul>> Create();
  ~CublasMatmul();

  // Queues the product. `workspace` has kWorkspaceBytes. UNIMPLEMENTED where cuBLASLt has no
  // algorithm for it.
  absl::Status Run(const MatmulShape& shape, const MatmulOperands& operands, void* workspace,
                   cudaStream_t stream);

 private:
  struct Plan;
  // Sizes, strides, flags, types, and how far addresses are aligned.
  using Key = std::array<int64_t, 14>;

  explicit CublasMatmul(cublasLtHandle_t handle);
  absl::StatusOr<const Plan*> FindPlan(const MatmulShape& shape, const MatmulOperands& operands);
  absl::Status FillPlan(const MatmulShape& shape, const MatmulOperands& operands, Plan* plan);

  cublasLtHandle_t handle_;
  absl::flat_hash_map<Key, std::unique_ptr<Plan>> plans_;
  std::deque<Key> order_;  // of plans_, oldest first
};

}  // namespace sparsebalance::kernels::cuda
