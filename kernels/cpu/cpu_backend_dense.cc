#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/normalization.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/swiglu.h"
#include "kernels/op_checks.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cpu {
namespace {

absl::Status CheckIds(std::string_view op, DeviceSpan<const int32_t> ids, int64_t count,
                      int64_t limit) {
  const int32_t* data = DeviceAccess::Data(ids);
  for (int64_t i = 0; i < count; ++i) {
    if (data[i] < 0 || data[i] >= limit) {
      return absl::InvalidArgumentError(absl::StrCat(absl::string_view(op.data(), op.size()),
                                                     ": id ", data[i], " at position ", i,
                                                     " is outside [0, ", limit, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CpuBackend::EmbeddingForward(int64_t columns, DeviceSpan<const int32_t> ids,
                                          ConstDeviceBuffer table, DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::EmbeddingForward(columns, ids.size(), table, out));
  SB_RETURN_IF_ERROR(CheckIds("EmbeddingForward", ids, ids.size(), table.size() / columns));
  cpu::EmbeddingForward(threads_, ids.size(), columns, DeviceAccess::Data(ids),
                        DeviceAccess::Floats(table), DeviceAccess::Floats(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::EmbeddingBackward(int64_t columns, DeviceSpan<const int32_t> ids,
                                           ConstDeviceBuffer out_grad, DeviceBuffer table_grad) {
  SB_RETURN_IF_ERROR(op_checks::EmbeddingBackward(columns, ids.size(), out_grad, table_grad));
  SB_RETURN_IF_ERROR(CheckIds("EmbeddingBackward", ids, ids.size(), table_grad.size() / columns));
  cpu::EmbeddingBackward(threads_, ids.size(), columns, DeviceAccess::Data(ids),
                         DeviceAccess::Floats(out_grad), DeviceAccess::Floats(table_grad));
  return absl::OkStatus();
}

absl::Status CpuBackend::Matmul(const MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                                ConstDeviceBuffer bias, DeviceBuffer c) {
  SB_RETURN_IF_ERROR(op_checks::Matmul(shape, a, b, bias, c));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch,
                      Allocate<float>(MatmulScratch(shape) / static_cast<int64_t>(sizeof(float))));
  return matmul_.Run(shape, DeviceAccess::Floats(a), DeviceAccess::Floats(b),
                     bias.empty() ? nullptr : DeviceAccess::Floats(bias), DeviceAccess::Floats(c),
                     DeviceAccess::Data(scratch.span()));
}

absl::Status CpuBackend::AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x,
                                       DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::AddColumnSums(rows, columns, x, out));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch,
                      Allocate<float>(ColumnSumPartials(rows, columns)));
  cpu::AddColumnSums(threads_, rows, columns, DeviceAccess::Floats(x), DeviceAccess::Floats(out),
                     DeviceAccess::Data(scratch.span()));
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNormForward(const NormShape& shape, ConstDeviceBuffer x,
                                        ConstDeviceBuffer weight, DeviceBuffer y,
                                        DeviceBuffer inverse_rms) {
  SB_RETURN_IF_ERROR(op_checks::RmsNormForward(shape, x, weight, y, inverse_rms));
  cpu::RmsNormForward(threads_, shape.rows, shape.columns, shape.epsilon, DeviceAccess::Floats(x),
                      DeviceAccess::Floats(weight), DeviceAccess::Floats(y),
                      DeviceAccess::Floats(inverse_rms));
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNormBackward(const NormShape& shape, ConstDeviceBuffer x,
                                         ConstDeviceBuffer weight, ConstDeviceBuffer inverse_rms,
                                         ConstDeviceBuffer y_grad, DeviceBuffer x_grad,
                                         DeviceBuffer weight_grad) {
  SB_RETURN_IF_ERROR(
      op_checks::RmsNormBackward(shape, x, weight, inverse_rms, y_grad, x_grad, weight_grad));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch,
                      Allocate<float>(RmsNormPartials(shape.rows, shape.columns)));
  cpu::RmsNormBackward(threads_, shape.rows, shape.columns, DeviceAccess::Floats(x),
                       DeviceAccess::Floats(weight), DeviceAccess::Floats(inverse_rms),
                       DeviceAccess::Floats(y_grad), DeviceAccess::Floats(x_grad),
                       DeviceAccess::Floats(weight_grad), DeviceAccess::Data(scratch.span()));
  return absl::OkStatus();
}

absl::Status CpuBackend::RopeTable(int head_dim, double theta, DeviceSpan<const int32_t> positions,
                                   DeviceBuffer table) {
  SB_RETURN_IF_ERROR(op_checks::RopeTable(head_dim, positions.size(), table));
  cpu::RopeTable(threads_, positions.size(), head_dim, theta, DeviceAccess::Data(positions),
                 DeviceAccess::Floats(table));
  return absl::OkStatus();
}

absl::Status CpuBackend::Rope(const RopeShape& shape, ConstDeviceBuffer table, bool inverse,
                              DeviceBuffer x) {
  SB_RETURN_IF_ERROR(op_checks::Rope(shape, table, x));
  cpu::Rope(threads_, shape.tokens, shape.num_heads, shape.head_dim, shape.row_stride,
            DeviceAccess::Floats(table), inverse, DeviceAccess::Floats(x));
  return absl::OkStatus();
}

absl::Status CpuBackend::SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                       DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::SwiGluForward(rows, columns, gate_up, out));
  cpu::SwiGluForward(threads_, rows, columns, DeviceAccess::Floats(gate_up),
                     DeviceAccess::Floats(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                        ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad) {
  SB_RETURN_IF_ERROR(op_checks::SwiGluBackward(rows, columns, gate_up, out_grad, gate_up_grad));
  cpu::SwiGluBackward(threads_, rows, columns, DeviceAccess::Floats(gate_up),
                      DeviceAccess::Floats(out_grad), DeviceAccess::Floats(gate_up_grad));
  return absl::OkStatus();
}

absl::Status CpuBackend::Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::Add(a, b, out));
  cpu::Add(threads_, out.size(), DeviceAccess::Floats(a), DeviceAccess::Floats(b),
           DeviceAccess::Floats(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::Scale(float factor, DeviceBuffer x) {
  cpu::Scale(threads_, x.size(), factor, DeviceAccess::Floats(x));
  return absl::OkStatus();
}

absl::Status CpuBackend::Dropout(const DropoutShape& shape, DeviceSpan<const uint64_t> keys,
                                 ConstDeviceBuffer x, DeviceBuffer y) {
  SB_RETURN_IF_ERROR(op_checks::Dropout(shape, keys.size(), x, y));
  cpu::Dropout(threads_, shape, DeviceAccess::Data(keys), DeviceAccess::Floats(x),
               DeviceAccess::Floats(y));
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropy(const CrossEntropyShape& shape, ConstDeviceBuffer logits,
                                      DeviceSpan<const int32_t> targets, ConstDeviceBuffer weights,
                                      DeviceBuffer logits_grad, DeviceSpan<double> loss_sum) {
  SB_RETURN_IF_ERROR(op_checks::CrossEntropy(shape, logits, targets.size(), weights, logits_grad,
                                             loss_sum.size()));
  const int32_t* ids = DeviceAccess::Data(targets);
  const float* w = DeviceAccess::Floats(weights);
  for (int64_t r = 0; r < shape.rows; ++r) {
    if (w[r] != 0.0F && (ids[r] < 0 || ids[r] >= shape.classes)) {
      return absl::InvalidArgumentError(absl::StrCat("CrossEntropy: target ", ids[r], " at row ", r,
                                                     " is outside [0, ", shape.classes, ")"));
    }
  }
  SB_ASSIGN_OR_RETURN(DeviceArray<double> row_losses, Allocate<double>(shape.rows));
  cpu::CrossEntropy(threads_, shape.rows, shape.classes, shape.loss_scale,
                    DeviceAccess::Floats(logits), ids, w,
                    logits_grad.empty() ? nullptr : DeviceAccess::Floats(logits_grad),
                    DeviceAccess::Data(row_losses.span()), DeviceAccess::Data(loss_sum));
  return absl::OkStatus();
}

absl::Status CpuBackend::AdamW(const AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                               DeviceBuffer m, DeviceBuffer v, DeviceBuffer copy) {
  SB_RETURN_IF_ERROR(op_checks::AdamW(args, grad, value, m, v, copy));
  cpu::AdamW(threads_, value.size(), args, DeviceAccess::Floats(grad), DeviceAccess::Floats(value),
             DeviceAccess::Floats(m), DeviceAccess::Floats(v));
  if (copy.empty()) return absl::OkStatus();
  return CopyDeviceToDevice(value, copy.Slice(0, value.size()));
}

absl::Status CpuBackend::AddSquaredNorm(ConstDeviceBuffer x, DeviceSpan<double> out) {
  SB_RETURN_IF_ERROR(op_checks::AddSquaredNorm(out.size()));
  SB_ASSIGN_OR_RETURN(DeviceArray<double> scratch, Allocate<double>(SquaredNormPartials(x.size())));
  *DeviceAccess::Data(out) +=
      SquaredNorm(threads_, x.size(), DeviceAccess::Floats(x), DeviceAccess::Data(scratch.span()));
  return absl::OkStatus();
}

int64_t CpuBackend::MatmulScratch(const MatmulShape& shape) const {
  return (MatmulEngine::DepthPieces(shape) - 1) * shape.m * shape.n *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace sparsebalance::kernels::cpu
