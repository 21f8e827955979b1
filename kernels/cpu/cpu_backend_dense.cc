#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/normalization.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/swiglu.h"
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
  SB_RETURN_IF_ERROR(CheckAtLeast("EmbeddingForward", {{"columns", columns, 1}}));
  SB_RETURN_IF_ERROR(CheckSizes("EmbeddingForward", {{"out", out.size(), ids.size() * columns}}));
  SB_RETURN_IF_ERROR(CheckIds("EmbeddingForward", ids, ids.size(), table.size() / columns));
  cpu::EmbeddingForward(threads_, ids.size(), columns, DeviceAccess::Data(ids),
                        DeviceAccess::Data(table), DeviceAccess::Data(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::EmbeddingBackward(int64_t columns, DeviceSpan<const int32_t> ids,
                                           ConstDeviceBuffer out_grad, DeviceBuffer table_grad) {
  SB_RETURN_IF_ERROR(CheckAtLeast("EmbeddingBackward", {{"columns", columns, 1}}));
  SB_RETURN_IF_ERROR(
      CheckSizes("EmbeddingBackward", {{"out_grad", out_grad.size(), ids.size() * columns}}));
  SB_RETURN_IF_ERROR(CheckIds("EmbeddingBackward", ids, ids.size(), table_grad.size() / columns));
  cpu::EmbeddingBackward(threads_, ids.size(), columns, DeviceAccess::Data(ids),
                         DeviceAccess::Data(out_grad), DeviceAccess::Data(table_grad));
  return absl::OkStatus();
}

absl::Status CpuBackend::Matmul(const MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                                ConstDeviceBuffer bias, DeviceBuffer c) {
  SB_RETURN_IF_ERROR(
      CheckAtLeast("Matmul", {{"m", shape.m, 1}, {"n", shape.n, 1}, {"k", shape.k, 1}}));
  const MatmulStrides strides = StridesOf(shape);
  const int64_t a_rows = shape.transpose_a ? shape.k : shape.m;
  const int64_t a_columns = shape.transpose_a ? shape.m : shape.k;
  const int64_t b_rows = shape.transpose_b ? shape.n : shape.k;
  const int64_t b_columns = shape.transpose_b ? shape.k : shape.n;
  SB_RETURN_IF_ERROR(CheckAtLeast("Matmul", {{"a_stride", strides.a, a_columns},
                                             {"b_stride", strides.b, b_columns},
                                             {"c_stride", strides.c, shape.n}}));
  SB_RETURN_IF_ERROR(CheckSizes("Matmul", {{"a", a.size(), (a_rows - 1) * strides.a + a_columns},
                                           {"b", b.size(), (b_rows - 1) * strides.b + b_columns},
                                           {"bias", bias.size(), bias.empty() ? 0 : shape.n},
                                           {"c", c.size(), (shape.m - 1) * strides.c + shape.n}}));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch,
                      Allocate<float>(MatmulScratch(shape) / static_cast<int64_t>(sizeof(float))));
  return matmul_.Run(shape, DeviceAccess::Data(a), DeviceAccess::Data(b),
                     bias.empty() ? nullptr : DeviceAccess::Data(bias), DeviceAccess::Data(c),
                     DeviceAccess::Data(scratch.span()));
}

absl::Status CpuBackend::AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x,
                                       DeviceBuffer out) {
  SB_RETURN_IF_ERROR(CheckAtLeast("AddColumnSums", {{"rows", rows, 0}, {"columns", columns, 1}}));
  SB_RETURN_IF_ERROR(
      CheckSizes("AddColumnSums", {{"x", x.size(), rows * columns}, {"out", out.size(), columns}}));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch,
                      Allocate<float>(ColumnSumPartials(rows, columns)));
  cpu::AddColumnSums(threads_, rows, columns, DeviceAccess::Data(x), DeviceAccess::Data(out),
                     DeviceAccess::Data(scratch.span()));
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNormForward(const NormShape& shape, ConstDeviceBuffer x,
                                        ConstDeviceBuffer weight, DeviceBuffer y,
                                        DeviceBuffer inverse_rms) {
  SB_RETURN_IF_ERROR(
      CheckAtLeast("RmsNormForward", {{"rows", shape.rows, 0}, {"columns", shape.columns, 1}}));
  SB_RETURN_IF_ERROR(
      CheckSizes("RmsNormForward", {{"x", x.size(), shape.rows * shape.columns},
                                    {"weight", weight.size(), shape.columns},
                                    {"y", y.size(), shape.rows * shape.columns},
                                    {"inverse_rms", inverse_rms.size(), shape.rows}}));
  cpu::RmsNormForward(threads_, shape.rows, shape.columns, shape.epsilon, DeviceAccess::Data(x),
                      DeviceAccess::Data(weight), DeviceAccess::Data(y),
                      DeviceAccess::Data(inverse_rms));
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNormBackward(const NormShape& shape, ConstDeviceBuffer x,
                                         ConstDeviceBuffer weight, ConstDeviceBuffer inverse_rms,
                                         ConstDeviceBuffer y_grad, DeviceBuffer x_grad,
                                         DeviceBuffer weight_grad) {
  const int64_t elements = shape.rows * shape.columns;
  SB_RETURN_IF_ERROR(
      CheckAtLeast("RmsNormBackward", {{"rows", shape.rows, 0}, {"columns", shape.columns, 1}}));
  SB_RETURN_IF_ERROR(CheckSizes("RmsNormBackward", {{"x", x.size(), elements},
                                                    {"weight", weight.size(), shape.columns},
                                                    {"inverse_rms", inverse_rms.size(), shape.rows},
                                                    {"y_grad", y_grad.size(), elements},
                                                    {"x_grad", x_grad.size(), elements},
                                                    {"weight_grad", weight_grad.size(),
                                                     weight_grad.empty() ? 0 : shape.columns}}));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch,
                      Allocate<float>(RmsNormPartials(shape.rows, shape.columns)));
  cpu::RmsNormBackward(threads_, shape.rows, shape.columns, DeviceAccess::Data(x),
                       DeviceAccess::Data(weight), DeviceAccess::Data(inverse_rms),
                       DeviceAccess::Data(y_grad), DeviceAccess::Data(x_grad),
                       DeviceAccess::Data(weight_grad), DeviceAccess::Data(scratch.span()));
  return absl::OkStatus();
}

absl::Status CpuBackend::RopeTable(int head_dim, double theta, DeviceSpan<const int32_t> positions,
                                   DeviceBuffer table) {
  if (head_dim < 2 || head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("RopeTable: head_dim is ", head_dim, ", must be even and at least 2"));
  }
  SB_RETURN_IF_ERROR(
      CheckSizes("RopeTable", {{"table", table.size(), positions.size() * head_dim}}));
  cpu::RopeTable(threads_, positions.size(), head_dim, theta, DeviceAccess::Data(positions),
                 DeviceAccess::Data(table));
  return absl::OkStatus();
}

absl::Status CpuBackend::Rope(const RopeShape& shape, ConstDeviceBuffer table, bool inverse,
                              DeviceBuffer x) {
  const int64_t width = static_cast<int64_t>(shape.num_heads) * shape.head_dim;
  SB_RETURN_IF_ERROR(CheckAtLeast("Rope", {{"row_stride", shape.row_stride, width}}));
  SB_RETURN_IF_ERROR(CheckSizes(
      "Rope",
      {{"table", table.size(), shape.tokens * shape.head_dim},
       {"x", x.size(), shape.tokens == 0 ? 0 : (shape.tokens - 1) * shape.row_stride + width}}));
  cpu::Rope(threads_, shape.tokens, shape.num_heads, shape.head_dim, shape.row_stride,
            DeviceAccess::Data(table), inverse, DeviceAccess::Data(x));
  return absl::OkStatus();
}

absl::Status CpuBackend::SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                       DeviceBuffer out) {
  SB_RETURN_IF_ERROR(CheckSizes("SwiGluForward", {{"gate_up", gate_up.size(), 2 * rows * columns},
                                                  {"out", out.size(), rows * columns}}));
  cpu::SwiGluForward(threads_, rows, columns, DeviceAccess::Data(gate_up), DeviceAccess::Data(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                        ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad) {
  SB_RETURN_IF_ERROR(
      CheckSizes("SwiGluBackward", {{"gate_up", gate_up.size(), 2 * rows * columns},
                                    {"out_grad", out_grad.size(), rows * columns},
                                    {"gate_up_grad", gate_up_grad.size(), 2 * rows * columns}}));
  cpu::SwiGluBackward(threads_, rows, columns, DeviceAccess::Data(gate_up),
                      DeviceAccess::Data(out_grad), DeviceAccess::Data(gate_up_grad));
  return absl::OkStatus();
}

absl::Status CpuBackend::Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out) {
  SB_RETURN_IF_ERROR(CheckSizes("Add", {{"a", a.size(), out.size()}, {"b", b.size(), out.size()}}));
  cpu::Add(threads_, out.size(), DeviceAccess::Data(a), DeviceAccess::Data(b),
           DeviceAccess::Data(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::Scale(float factor, DeviceBuffer x) {
  cpu::Scale(threads_, x.size(), factor, DeviceAccess::Data(x));
  return absl::OkStatus();
}

absl::Status CpuBackend::Dropout(const DropoutShape& shape, DeviceSpan<const uint64_t> keys,
                                 ConstDeviceBuffer x, DeviceBuffer y) {
  const int64_t elements = shape.rows * shape.columns;
  SB_RETURN_IF_ERROR(
      CheckAtLeast("Dropout", {{"rows", shape.rows, 0}, {"columns", shape.columns, 1}}));
  SB_RETURN_IF_ERROR(CheckSizes(
      "Dropout",
      {{"keys", keys.size(), shape.rows}, {"x", x.size(), elements}, {"y", y.size(), elements}}));
  if (!(shape.rate >= 0 && shape.rate < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Dropout: rate is ", shape.rate, ", must lie in [0, 1)"));
  }
  cpu::Dropout(threads_, shape, DeviceAccess::Data(keys), DeviceAccess::Data(x),
               DeviceAccess::Data(y));
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropy(const CrossEntropyShape& shape, ConstDeviceBuffer logits,
                                      DeviceSpan<const int32_t> targets, ConstDeviceBuffer weights,
                                      DeviceBuffer logits_grad, DeviceSpan<double> loss_sum) {
  const int64_t elements = shape.rows * shape.classes;
  SB_RETURN_IF_ERROR(
      CheckAtLeast("CrossEntropy", {{"rows", shape.rows, 0}, {"classes", shape.classes, 1}}));
  SB_RETURN_IF_ERROR(CheckSizes(
      "CrossEntropy", {{"logits", logits.size(), elements},
                       {"targets", targets.size(), shape.rows},
                       {"weights", weights.size(), shape.rows},
                       {"logits_grad", logits_grad.size(), logits_grad.empty() ? 0 : elements},
                       {"loss_sum", loss_sum.size(), 1}}));
  const int32_t* ids = DeviceAccess::Data(targets);
  const float* w = DeviceAccess::Data(weights);
  for (int64_t r = 0; r < shape.rows; ++r) {
    if (w[r] != 0.0F && (ids[r] < 0 || ids[r] >= shape.classes)) {
      return absl::InvalidArgumentError(absl::StrCat("CrossEntropy: target ", ids[r], " at row ", r,
                                                     " is outside [0, ", shape.classes, ")"));
    }
  }
  SB_ASSIGN_OR_RETURN(DeviceArray<double> row_losses, Allocate<double>(shape.rows));
  cpu::CrossEntropy(threads_, shape.rows, shape.classes, shape.loss_scale,
                    DeviceAccess::Data(logits), ids, w,
                    logits_grad.empty() ? nullptr : DeviceAccess::Data(logits_grad),
                    DeviceAccess::Data(row_losses.span()), DeviceAccess::Data(loss_sum));
  return absl::OkStatus();
}

absl::Status CpuBackend::AdamW(const AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                               DeviceBuffer m, DeviceBuffer v) {
  SB_RETURN_IF_ERROR(CheckAtLeast("AdamW", {{"step", args.step, 1}}));
  SB_RETURN_IF_ERROR(CheckSizes("AdamW", {{"grad", grad.size(), value.size()},
                                          {"m", m.size(), value.size()},
                                          {"v", v.size(), value.size()}}));
  cpu::AdamW(threads_, value.size(), args, DeviceAccess::Data(grad), DeviceAccess::Data(value),
             DeviceAccess::Data(m), DeviceAccess::Data(v));
  return absl::OkStatus();
}

absl::Status CpuBackend::AddSquaredNorm(ConstDeviceBuffer x, DeviceSpan<double> out) {
  SB_RETURN_IF_ERROR(CheckSizes("AddSquaredNorm", {{"out", out.size(), 1}}));
  SB_ASSIGN_OR_RETURN(DeviceArray<double> scratch, Allocate<double>(SquaredNormPartials(x.size())));
  *DeviceAccess::Data(out) +=
      SquaredNorm(threads_, x.size(), DeviceAccess::Data(x), DeviceAccess::Data(scratch.span()));
  return absl::OkStatus();
}

int64_t CpuBackend::MatmulScratch(const MatmulShape& shape) const {
  return (MatmulEngine::DepthPieces(shape) - 1) * shape.m * shape.n *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace sparsebalance::kernels::cpu
