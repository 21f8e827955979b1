#include "worker/model/projection.h"

#include <algorithm>

#include "kernels/status_macros.h"

namespace sparsebalance::model {
namespace {

using kernels::DeviceTensor;

absl::Status Drop(kernels::Backend* backend, const Dropout& dropout, int64_t tokens,
                  int64_t columns, bool accumulate, ConstDeviceBuffer x, DeviceBuffer y) {
  return backend->Dropout({.rows = tokens,
                           .columns = columns,
                           .rate = dropout.rate,
                           .site = dropout.site,
                           .accumulate = accumulate},
                          dropout.keys, x, y);
}

// What the adapters of one projection compute from its input.
struct AdapterInput {
  DeviceTensor dropped;  // [tokens, inputs]; empty without dropout
  DeviceTensor hidden;   // [tokens, rank * parts], scale * drop(x) A^T
  int64_t width = 0;     // of hidden

  ConstDeviceBuffer Input(ConstDeviceBuffer x) const {
    return dropped.span().empty() ? x : ConstDeviceBuffer(dropped.span());
  }
};

absl::Status Compress(kernels::Backend* backend, const ProjectionShape& shape,
                      const AdapterWeights& adapters, ConstDeviceBuffer x, AdapterInput* out) {
  if (shape.adapter_dropout.active()) {
    SB_ASSIGN_OR_RETURN(out->dropped, backend->AllocateActivations(shape.tokens * shape.inputs));
    SB_RETURN_IF_ERROR(Drop(backend, shape.adapter_dropout, shape.tokens, shape.inputs, false, x,
                            out->dropped.span()));
  }
  out->width = shape.adapter_rank * static_cast<int64_t>(adapters.parts.size());
  SB_ASSIGN_OR_RETURN(out->hidden, backend->AllocateActivations(shape.tokens * out->width));
  SB_RETURN_IF_ERROR(
      backend->Matmul({.m = shape.tokens, .n = out->width, .k = shape.inputs, .transpose_b = true},
                      out->Input(x), adapters.a, {}, out->hidden.span()));
  return backend->Scale(shape.adapter_scale, out->hidden.span());
}

absl::Status AdaptersBackward(kernels::Backend* backend, const ProjectionShape& shape,
                              const AdapterWeights& adapters, const AdapterWeights& grads,
                              ConstDeviceBuffer x, ConstDeviceBuffer y_grad, DeviceBuffer x_grad) {
  // Computed again rather than kept: it is a small share of the projection.
  AdapterInput input;
  SB_RETURN_IF_ERROR(Compress(backend, shape, adapters, x, &input));
  SB_ASSIGN_OR_RETURN(DeviceTensor hidden_grad,
                      backend->AllocateActivations(shape.tokens * input.width));
  const int64_t rank = shape.adapter_rank;
  for (size_t p = 0; p < adapters.parts.size(); ++p) {
    const AdapterWeights::Part& part = adapters.parts[p];
    const int64_t column = static_cast<int64_t>(p) * rank;
    const ConstDeviceBuffer part_grad = y_grad.Slice(part.first_output);
    SB_RETURN_IF_ERROR(backend->Matmul({.m = part.outputs,
                                        .n = rank,
                                        .k = shape.tokens,
                                        .transpose_a = true,
                                        .accumulate = true,
                                        .a_stride = shape.outputs,
                                        .b_stride = input.width},
                                       part_grad, input.hidden.span().Slice(column), {},
                                       grads.parts[p].b));
    SB_RETURN_IF_ERROR(backend->Matmul({.m = shape.tokens,
                                        .n = rank,
                                        .k = part.outputs,
                                        .a_stride = shape.outputs,
                                        .c_stride = input.width},
                                       part_grad, part.b, {}, hidden_grad.span().Slice(column)));
  }
  SB_RETURN_IF_ERROR(backend->Scale(shape.adapter_scale, hidden_grad.span()));
  SB_RETURN_IF_ERROR(backend->Matmul({.m = input.width,
                                      .n = shape.inputs,
                                      .k = shape.tokens,
                                      .transpose_a = true,
                                      .accumulate = true},
                                     hidden_grad.span(), input.Input(x), {}, grads.a));
  const bool drops = shape.adapter_dropout.active();
  // The dropped input has been used for the last time: its memory takes the gradient of it.
  const DeviceBuffer to = drops ? input.dropped.span() : x_grad;
  SB_RETURN_IF_ERROR(backend->Matmul(
      {.m = shape.tokens, .n = shape.inputs, .k = input.width, .accumulate = !drops},
      hidden_grad.span(), adapters.a, {}, to));
  if (!drops) return absl::OkStatus();
  return Drop(backend, shape.adapter_dropout, shape.tokens, shape.inputs, true, to, x_grad);
}

}  // namespace

absl::Status DropInPlace(kernels::Backend* backend, const Dropout& dropout, int64_t tokens,
                         int64_t columns, DeviceBuffer x) {
  if (!dropout.active()) return absl::OkStatus();
  return Drop(backend, dropout, tokens, columns, false, x, x);
}

absl::Status Project(kernels::Backend* backend, const ProjectionShape& shape,
                     const ProjectionWeights& weights, ConstDeviceBuffer x, bool accumulate,
                     DeviceBuffer y) {
  SB_RETURN_IF_ERROR(backend->Matmul({.m = shape.tokens,
                                      .n = shape.outputs,
                                      .k = shape.inputs,
                                      .transpose_b = true,
                                      .accumulate = accumulate},
                                     x, weights.weight, weights.bias, y));
  if (weights.adapters.parts.empty()) return absl::OkStatus();
  AdapterInput input;
  SB_RETURN_IF_ERROR(Compress(backend, shape, weights.adapters, x, &input));
  for (size_t p = 0; p < weights.adapters.parts.size(); ++p) {
    const AdapterWeights::Part& part = weights.adapters.parts[p];
    SB_RETURN_IF_ERROR(
        backend->Matmul({.m = shape.tokens,
                         .n = part.outputs,
                         .k = shape.adapter_rank,
                         .transpose_b = true,
                         .accumulate = true,
                         .a_stride = input.width,
                         .c_stride = shape.outputs},
                        input.hidden.span().Slice(static_cast<int64_t>(p) * shape.adapter_rank),
                        part.b, {}, y.Slice(part.first_output)));
  }
  return absl::OkStatus();
}

absl::Status ProjectBackward(kernels::Backend* backend, const ProjectionShape& shape,
                             const ProjectionWeights& weights, const ProjectionWeights& grads,
                             ConstDeviceBuffer x, ConstDeviceBuffer y_grad, DeviceBuffer x_grad) {
  if (!grads.bias.empty()) {
    SB_RETURN_IF_ERROR(backend->AddColumnSums(shape.tokens, shape.outputs, y_grad, grads.bias));
  }
  if (!grads.weight.empty()) {
    SB_RETURN_IF_ERROR(backend->Matmul({.m = shape.outputs,
                                        .n = shape.inputs,
                                        .k = shape.tokens,
                                        .transpose_a = true,
                                        .accumulate = true},
                                       y_grad, x, {}, grads.weight));
  }
  SB_RETURN_IF_ERROR(backend->Matmul({.m = shape.tokens, .n = shape.inputs, .k = shape.outputs},
                                     y_grad, weights.weight, {}, x_grad));
  if (weights.adapters.parts.empty()) return absl::OkStatus();
  return AdaptersBackward(backend, shape, weights.adapters, grads.adapters, x, y_grad, x_grad);
}

absl::Status ProjectIntoStream(kernels::Backend* backend, const ProjectionShape& shape,
                               const ProjectionWeights& weights, const Dropout& dropout,
                               ConstDeviceBuffer x, DeviceBuffer stream) {
  if (!dropout.active()) return Project(backend, shape, weights, x, true, stream);
  SB_ASSIGN_OR_RETURN(DeviceTensor branch,
                      backend->AllocateActivations(shape.tokens * shape.outputs));
  SB_RETURN_IF_ERROR(Project(backend, shape, weights, x, false, branch.span()));
  return Drop(backend, dropout, shape.tokens, shape.outputs, true, branch.span(), stream);
}

absl::Status ProjectIntoStreamBackward(kernels::Backend* backend, const ProjectionShape& shape,
                                       const ProjectionWeights& weights,
                                       const ProjectionWeights& grads, const Dropout& dropout,
                                       ConstDeviceBuffer x, ConstDeviceBuffer stream_grad,
                                       DeviceBuffer x_grad) {
  if (!dropout.active()) {
    return ProjectBackward(backend, shape, weights, grads, x, stream_grad, x_grad);
  }
  SB_ASSIGN_OR_RETURN(DeviceTensor branch_grad,
                      backend->AllocateActivations(shape.tokens * shape.outputs));
  SB_RETURN_IF_ERROR(
      Drop(backend, dropout, shape.tokens, shape.outputs, false, stream_grad, branch_grad.span()));
  return ProjectBackward(backend, shape, weights, grads, x, branch_grad.span(), x_grad);
}

ProjectionScratch ScratchOf(const kernels::Backend& backend, const ProjectionShape& shape,
                            int adapters, bool base_is_trained, bool stream_dropout) {
  const auto taken = [&](int64_t columns) {
    return backend.AllocatedBytes(shape.tokens * columns * ElementBytes(backend.activation_type()));
  };
  const auto gradient = [&](int64_t outputs, int64_t inputs) {
    return backend.MatmulScratch(
        {.m = outputs, .n = inputs, .k = shape.tokens, .transpose_a = true, .accumulate = true});
  };
  ProjectionScratch out;
  if (base_is_trained) out.backward = gradient(shape.outputs, shape.inputs);
  if (adapters > 0) {
    const int64_t width = static_cast<int64_t>(adapters) * shape.adapter_rank;
    out.forward = taken(width) + (shape.adapter_dropout.rate > 0 ? taken(shape.inputs) : 0);
    out.backward = std::max(out.backward, out.forward + taken(width) +
                                              std::max(gradient(shape.outputs, shape.adapter_rank),
                                                       gradient(width, shape.inputs)));
  }
  if (stream_dropout) {
    out.forward += taken(shape.outputs);
    out.backward += taken(shape.outputs);
  }
  return out;
}

}  // namespace sparsebalance::model
