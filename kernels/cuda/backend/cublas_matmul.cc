#include "kernels/cuda/backend/cublas_matmul.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/backend/cuda_check.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// Micro-batches differ in length, and each length is a shape of its own.
constexpr size_t kMostPlans = 4096;

cudaDataType_t DataType(ElementType type) {
  return type == ElementType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

// The largest power of two up to 256 that divides the address.
uint32_t Alignment(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return value == 0 ? 256U : static_cast<uint32_t>(std::min<uintptr_t>(256, value & (~value + 1)));
}

// Handles of cuBLASLt, destroyed with it.
template <typename T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  void operator()(T handle) const { kDestroy(handle); }
};
template <typename T, cublasStatus_t (*kDestroy)(T)>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, kDestroy>>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

absl::Status MakeLayout(ElementType type, int64_t rows, int64_t columns, int64_t stride,
                        Layout* out) {
  cublasLtMatrixLayout_t layout = nullptr;
  SB_CUBLAS_RETURN_IF_ERROR(cublasLtMatrixLayoutCreate(&layout, DataType(type),
                                                       static_cast<uint64_t>(rows),
                                                       static_cast<uint64_t>(columns), stride));
  out->reset(layout);
  return absl::OkStatus();
}

}  // namespace

struct CublasMatmul::Plan {
  Description description;
  Layout left, right, result;
  cublasLtMatmulAlgo_t algorithm = {};
};

CublasMatmul::CublasMatmul(cublasLtHandle_t handle) : handle_(handle) {}

absl::StatusOr<std::unique_ptr<CublasMatmul>> CublasMatmul::Create() {
  cublasLtHandle_t handle = nullptr;
  SB_CUBLAS_RETURN_IF_ERROR(cublasLtCreate(&handle));
  return std::unique_ptr<CublasMatmul>(new CublasMatmul(handle));
}

CublasMatmul::~CublasMatmul() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

// cuBLASLt's matrices are column-major, so that it sees the transpose of ours: c^T = op(b)^T
// op(a)^T. Its left operand is our b.
absl::Status CublasMatmul::FillPlan(const MatmulShape& s, const MatmulOperands& o, Plan* plan) {
  cublasLtMatmulDesc_t description = nullptr;
  SB_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan->description.reset(description);
  const auto set = [description](cublasLtMatmulDescAttributes_t attribute,
                                 auto value) -> absl::Status {
    SB_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)));
    return absl::OkStatus();
  };
  SB_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  SB_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (o.bias != nullptr) {
    SB_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    SB_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, DataType(o.output_type)));
    SB_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias));
  }
  SB_RETURN_IF_ERROR(MakeLayout(o.input_type, s.transpose_b ? s.k : s.n, s.transpose_b ? s.n : s.k,
                                s.b_stride, &plan->left));
  SB_RETURN_IF_ERROR(MakeLayout(o.input_type, s.transpose_a ? s.m : s.k, s.transpose_a ? s.k : s.m,
                                s.a_stride, &plan->right));
  SB_RETURN_IF_ERROR(MakeLayout(o.output_type, s.n, s.m, s.c_stride, &plan->result));

  cublasLtMatmulPreference_t made = nullptr;
  SB_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  const auto prefer = [&preference](cublasLtMatmulPreferenceAttributes_t attribute,
                                    auto value) -> absl::Status {
    SB_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
    return absl::OkStatus();
  };
  SB_RETURN_IF_ERROR(
      prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes)));
  SB_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Alignment(o.b)));
  SB_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Alignment(o.a)));
  SB_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Alignment(o.c)));
  SB_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Alignment(o.c)));

  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  SB_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulAlgoGetHeuristic(
      handle_, description, plan->left.get(), plan->right.get(), plan->result.get(),
      plan->result.get(), preference.get(), 1, &found, &count));
  if (count == 0) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for a product of ", s.m,
                                                 " x ", s.k, " and ", s.k, " x ", s.n));
  }
  plan->algorithm = found.algo;
  return absl::OkStatus();
}

absl::StatusOr<const CublasMatmul::Plan*> CublasMatmul::FindPlan(const MatmulShape& s,
                                                                 const MatmulOperands& o) {
  const Key key = {s.m,
                   s.n,
                   s.k,
                   s.a_stride,
                   s.b_stride,
                   s.c_stride,
                   (s.transpose_a ? 1 : 0) + (s.transpose_b ? 2 : 0) + (s.accumulate ? 4 : 0),
                   static_cast<int64_t>(o.input_type),
                   static_cast<int64_t>(o.output_type),
                   o.bias != nullptr ? 1 : 0,
                   Alignment(o.a),
                   Alignment(o.b),
                   Alignment(o.c),
                   Alignment(o.bias)};
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan != nullptr) return plan.get();
  auto made = std::make_unique<Plan>();
  if (absl::Status status = FillPlan(s, o, made.get()); !status.ok()) {
    plans_.erase(key);
    return status;
  }
  plan = std::move(made);
  const Plan* const out = plan.get();
  order_.push_back(key);
  if (order_.size() > kMostPlans) {
    plans_.erase(order_.front());
    order_.pop_front();
  }
  return out;
}

absl::Status CublasMatmul::Run(const MatmulShape& shape, const MatmulOperands& operands,
                               void* workspace, cudaStream_t stream) {
  SB_ASSIGN_OR_RETURN(const Plan* plan, FindPlan(shape, operands));
  if (operands.bias != nullptr) {
    SB_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatmulDescSetAttribute(plan->description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                       &operands.bias, sizeof(operands.bias)));
  }
  const float one = 1.0F;
  const float old = shape.accumulate ? 1.0F : 0.0F;
  SB_CUBLAS_RETURN_IF_ERROR(cublasLtMatmul(
      handle_, plan->description.get(), &one, operands.b, plan->left.get(), operands.a,
      plan->right.get(), &old, operands.c, plan->result.get(), operands.c, plan->result.get(),
      &plan->algorithm, workspace, static_cast<size_t>(kWorkspaceBytes), stream));
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels::cuda
