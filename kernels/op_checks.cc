#include "kernels/op_checks.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::op_checks {
namespace {

constexpr ElementType kFloat = ElementType::kFloat32;

}  // namespace

absl::Status EmbeddingForward(int64_t columns, int64_t ids, ConstDeviceBuffer table,
                              DeviceBuffer out) {
  SB_RETURN_IF_ERROR(CheckAtLeast("EmbeddingForward", {{"columns", columns, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("EmbeddingForward", {{"out", out.type(), table.type()}}));
  return CheckSizes("EmbeddingForward", {{"out", out.size(), ids * columns}});
}

absl::Status EmbeddingBackward(int64_t columns, int64_t ids, ConstDeviceBuffer out_grad,
                               DeviceBuffer table_grad) {
  SB_RETURN_IF_ERROR(CheckAtLeast("EmbeddingBackward", {{"columns", columns, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("EmbeddingBackward", {{"table_grad", table_grad.type(), kFloat}}));
  return CheckSizes("EmbeddingBackward", {{"out_grad", out_grad.size(), ids * columns}});
}

MatmulShape WithStrides(const MatmulShape& shape) {
  MatmulShape out = shape;
  if (out.a_stride == 0) out.a_stride = shape.transpose_a ? shape.m : shape.k;
  if (out.b_stride == 0) out.b_stride = shape.transpose_b ? shape.k : shape.n;
  if (out.c_stride == 0) out.c_stride = shape.n;
  return out;
}

absl::Status Matmul(const MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                    ConstDeviceBuffer bias, DeviceBuffer c) {
  SB_RETURN_IF_ERROR(
      CheckAtLeast("Matmul", {{"m", shape.m, 1}, {"n", shape.n, 1}, {"k", shape.k, 1}}));
  const MatmulShape s = WithStrides(shape);
  const int64_t a_rows = s.transpose_a ? s.k : s.m;
  const int64_t a_columns = s.transpose_a ? s.m : s.k;
  const int64_t b_rows = s.transpose_b ? s.n : s.k;
  const int64_t b_columns = s.transpose_b ? s.k : s.n;
  SB_RETURN_IF_ERROR(CheckAtLeast("Matmul", {{"a_stride", s.a_stride, a_columns},
                                             {"b_stride", s.b_stride, b_columns},
                                             {"c_stride", s.c_stride, s.n}}));
  SB_RETURN_IF_ERROR(CheckTypes("Matmul", {{"b", b.type(), a.type()}}));
  if (c.type() != a.type()) {
    SB_RETURN_IF_ERROR(CheckTypes("Matmul", {{"c", c.type(), kFloat}}));
  }
  if (!bias.empty()) {
    SB_RETURN_IF_ERROR(CheckTypes("Matmul", {{"bias", bias.type(), c.type()}}));
  }
  return CheckSizes("Matmul", {{"a", a.size(), (a_rows - 1) * s.a_stride + a_columns},
                               {"b", b.size(), (b_rows - 1) * s.b_stride + b_columns},
                               {"bias", bias.size(), bias.empty() ? 0 : s.n},
                               {"c", c.size(), (s.m - 1) * s.c_stride + s.n}});
}

absl::Status AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x, DeviceBuffer out) {
  SB_RETURN_IF_ERROR(CheckAtLeast("AddColumnSums", {{"rows", rows, 0}, {"columns", columns, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("AddColumnSums", {{"out", out.type(), kFloat}}));
  return CheckSizes("AddColumnSums",
                    {{"x", x.size(), rows * columns}, {"out", out.size(), columns}});
}

absl::Status RmsNormForward(const NormShape& shape, ConstDeviceBuffer x, ConstDeviceBuffer weight,
                            DeviceBuffer y, DeviceBuffer inverse_rms) {
  const int64_t elements = shape.rows * shape.columns;
  SB_RETURN_IF_ERROR(
      CheckAtLeast("RmsNormForward", {{"rows", shape.rows, 0}, {"columns", shape.columns, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("RmsNormForward", {{"weight", weight.type(), kFloat},
                                                   {"y", y.type(), x.type()},
                                                   {"inverse_rms", inverse_rms.type(), kFloat}}));
  return CheckSizes("RmsNormForward", {{"x", x.size(), elements},
                                       {"weight", weight.size(), shape.columns},
                                       {"y", y.size(), elements},
                                       {"inverse_rms", inverse_rms.size(), shape.rows}});
}

absl::Status RmsNormBackward(const NormShape& shape, ConstDeviceBuffer x, ConstDeviceBuffer weight,
                             ConstDeviceBuffer inverse_rms, ConstDeviceBuffer y_grad,
                             DeviceBuffer x_grad, DeviceBuffer weight_grad) {
  const int64_t elements = shape.rows * shape.columns;
  SB_RETURN_IF_ERROR(
      CheckAtLeast("RmsNormBackward", {{"rows", shape.rows, 0}, {"columns", shape.columns, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("RmsNormBackward", {{"weight", weight.type(), kFloat},
                                                    {"inverse_rms", inverse_rms.type(), kFloat},
                                                    {"y_grad", y_grad.type(), x.type()},
                                                    {"x_grad", x_grad.type(), x.type()},
                                                    {"weight_grad", weight_grad.type(), kFloat}}));
  return CheckSizes("RmsNormBackward",
                    {{"x", x.size(), elements},
                     {"weight", weight.size(), shape.columns},
                     {"inverse_rms", inverse_rms.size(), shape.rows},
                     {"y_grad", y_grad.size(), elements},
                     {"x_grad", x_grad.size(), elements},
                     {"weight_grad", weight_grad.size(), weight_grad.empty() ? 0 : shape.columns}});
}

absl::Status RopeTable(int head_dim, int64_t positions, DeviceBuffer table) {
  if (head_dim < 2 || head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("RopeTable: head_dim is ", head_dim, ", must be even and at least 2"));
  }
  SB_RETURN_IF_ERROR(CheckTypes("RopeTable", {{"table", table.type(), kFloat}}));
  return CheckSizes("RopeTable", {{"table", table.size(), positions * head_dim}});
}

absl::Status Rope(const RopeShape& shape, ConstDeviceBuffer table, DeviceBuffer x) {
  const int64_t width = static_cast<int64_t>(shape.num_heads) * shape.head_dim;
  const int64_t extent = shape.tokens == 0 ? 0 : (shape.tokens - 1) * shape.row_stride + width;
  SB_RETURN_IF_ERROR(CheckAtLeast("Rope", {{"row_stride", shape.row_stride, width}}));
  SB_RETURN_IF_ERROR(CheckTypes("Rope", {{"table", table.type(), kFloat}}));
  return CheckSizes(
      "Rope", {{"table", table.size(), shape.tokens * shape.head_dim}, {"x", x.size(), extent}});
}

absl::Status SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                           DeviceBuffer out) {
  SB_RETURN_IF_ERROR(CheckTypes("SwiGluForward", {{"out", out.type(), gate_up.type()}}));
  return CheckSizes("SwiGluForward", {{"gate_up", gate_up.size(), 2 * rows * columns},
                                      {"out", out.size(), rows * columns}});
}

absl::Status SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                            ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad) {
  SB_RETURN_IF_ERROR(
      CheckTypes("SwiGluBackward", {{"out_grad", out_grad.type(), gate_up.type()},
                                    {"gate_up_grad", gate_up_grad.type(), gate_up.type()}}));
  return CheckSizes("SwiGluBackward", {{"gate_up", gate_up.size(), 2 * rows * columns},
                                       {"out_grad", out_grad.size(), rows * columns},
                                       {"gate_up_grad", gate_up_grad.size(), 2 * rows * columns}});
}

absl::Status Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out) {
  SB_RETURN_IF_ERROR(CheckTypes("Add", {{"a", a.type(), out.type()}, {"b", b.type(), out.type()}}));
  return CheckSizes("Add", {{"a", a.size(), out.size()}, {"b", b.size(), out.size()}});
}

absl::Status Dropout(const DropoutShape& shape, int64_t keys, ConstDeviceBuffer x, DeviceBuffer y) {
  const int64_t elements = shape.rows * shape.columns;
  SB_RETURN_IF_ERROR(
      CheckAtLeast("Dropout", {{"rows", shape.rows, 0}, {"columns", shape.columns, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("Dropout", {{"y", y.type(), x.type()}}));
  SB_RETURN_IF_ERROR(CheckSizes(
      "Dropout",
      {{"keys", keys, shape.rows}, {"x", x.size(), elements}, {"y", y.size(), elements}}));
  if (!(shape.rate >= 0 && shape.rate < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Dropout: rate is ", shape.rate, ", must lie in [0, 1)"));
  }
  return absl::OkStatus();
}

absl::Status CrossEntropy(const CrossEntropyShape& shape, ConstDeviceBuffer logits, int64_t targets,
                          ConstDeviceBuffer weights, DeviceBuffer logits_grad, int64_t loss_sum) {
  const int64_t elements = shape.rows * shape.classes;
  SB_RETURN_IF_ERROR(
      CheckAtLeast("CrossEntropy", {{"rows", shape.rows, 0}, {"classes", shape.classes, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("CrossEntropy", {{"weights", weights.type(), kFloat}}));
  if (!logits_grad.empty()) {
    SB_RETURN_IF_ERROR(
        CheckTypes("CrossEntropy", {{"logits_grad", logits_grad.type(), logits.type()}}));
  }
  return CheckSizes("CrossEntropy",
                    {{"logits", logits.size(), elements},
                     {"targets", targets, shape.rows},
                     {"weights", weights.size(), shape.rows},
                     {"logits_grad", logits_grad.size(), logits_grad.empty() ? 0 : elements},
                     {"loss_sum", loss_sum, 1}});
}

absl::Status AdamW(const AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                   DeviceBuffer m, DeviceBuffer v, DeviceBuffer copy) {
  SB_RETURN_IF_ERROR(CheckAtLeast("AdamW", {{"step", args.step, 1}}));
  SB_RETURN_IF_ERROR(CheckTypes("AdamW", {{"grad", grad.type(), kFloat},
                                          {"value", value.type(), kFloat},
                                          {"m", m.type(), kFloat},
                                          {"v", v.type(), kFloat}}));
  return CheckSizes("AdamW", {{"grad", grad.size(), value.size()},
                              {"m", m.size(), value.size()},
                              {"v", v.size(), value.size()},
                              {"copy", copy.size(), copy.empty() ? 0 : value.size()}});
}

absl::Status AddSquaredNorm(int64_t out) { return CheckSizes("AddSquaredNorm", {{"out", out, 1}}); }

}  // namespace sparsebalance::kernels::op_checks
