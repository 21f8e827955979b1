#include "worker/model/layer.h"

#include <utility>

#include "kernels/status_macros.h"
#include "worker/model/guard.h"

namespace sparsebalance::model {
namespace {

using kernels::DeviceArray;

// Sizes of one layer, and where q, k and v lie in a row of the joint projection.
struct LayerShape {
  explicit LayerShape(const PassContext& c)
      : tokens(c.tokens()),
        hidden(c.config.hidden_size),
        q_width(static_cast<int64_t>(c.config.num_heads) * c.config.HeadDim()),
        kv_width(static_cast<int64_t>(c.config.num_kv_heads) * c.config.HeadDim()),
        qkv_width(q_width + 2 * kv_width),
        ffn(c.config.intermediate_size),
        norm{tokens, hidden, c.config.rms_norm_eps},
        // q and k lie side by side, so one call rotates both.
        rope{tokens, c.config.num_heads + c.config.num_kv_heads, c.config.HeadDim(), qkv_width},
        attention{c.config.num_heads, c.config.num_kv_heads,
                  c.config.HeadDim(), qkv_width,
                  qkv_width,          q_width} {}

  template <typename Span>
  Span Key(Span qkv) const {
    return qkv.Slice(q_width);
  }
  template <typename Span>
  Span Value(Span qkv) const {
    return qkv.Slice(q_width + kv_width);
  }

  int64_t tokens, hidden, q_width, kv_width, qkv_width, ffn;
  kernels::NormShape norm;
  kernels::RopeShape rope;
  kernels::AttentionShape attention;
};

// y [tokens, outputs] = or += x [tokens, inputs] * weight^T, weight [outputs, inputs].
absl::Status Project(kernels::Backend* backend, int64_t tokens, int64_t inputs, int64_t outputs,
                     ConstDeviceBuffer x, ConstDeviceBuffer weight, ConstDeviceBuffer bias,
                     bool accumulate, DeviceBuffer y) {
  return backend->Matmul(
      {.m = tokens, .n = outputs, .k = inputs, .transpose_b = true, .accumulate = accumulate}, x,
      weight, bias, y);
}

// x_grad = y_grad * weight and weight_grad += y_grad^T * x.
absl::Status ProjectBackward(kernels::Backend* backend, int64_t tokens, int64_t inputs,
                             int64_t outputs, ConstDeviceBuffer x, ConstDeviceBuffer weight,
                             ConstDeviceBuffer y_grad, DeviceBuffer x_grad,
                             DeviceBuffer weight_grad) {
  SB_RETURN_IF_ERROR(backend->Matmul(
      {.m = outputs, .n = inputs, .k = tokens, .transpose_a = true, .accumulate = true}, y_grad, x,
      {}, weight_grad));
  return backend->Matmul({.m = tokens, .n = inputs, .k = outputs}, y_grad, weight, {}, x_grad);
}

// Means of the keys, coverage, the guard, and the selection of blocks.
absl::Status Route(const PassContext& context, const LayerShape& shape, ConstDeviceBuffer qkv,
                   kernels::BlockLists* lists, LayerRouting* routing) {
  kernels::Backend* backend = context.backend;
  const kernels::PackedBlocks& blocks = context.layout.blocks();
  SB_ASSIGN_OR_RETURN(DeviceArray<float> means,
                      backend->Allocate<float>(shape.kv_width * blocks.blocks()));
  SB_RETURN_IF_ERROR(
      backend->BlockMeans(shape.attention, context.layout, shape.Key(qkv), means.span()));
  SB_ASSIGN_OR_RETURN(routing->coverage,
                      backend->CoverageCurves(shape.attention, context.layout, qkv, means.span(),
                                              context.config.coverage_sample_stride));
  routing->realized_budgets.clear();
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    routing->realized_budgets.push_back(
        RealizedBudget(blocks.SequenceBlocks(s), routing->coverage[s], routing->planned_budgets[s],
                       context.base_budgets[s], context.coverage_guard));
  }
  SB_ASSIGN_OR_RETURN(*lists, backend->SelectBlocks(shape.attention, context.layout, qkv,
                                                    means.span(), routing->realized_budgets));
  if (routing->audit_queries > 0) {
    SB_ASSIGN_OR_RETURN(routing->attention_mass,
                        backend->AttentionMass(shape.attention, context.layout, *lists, qkv,
                                               shape.Key(qkv), routing->audit_queries));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LayerForward(const PassContext& context, const LayerWeights& weights,
                          ConstDeviceBuffer x, DeviceBuffer out, LayerActivations* saved,
                          LayerRouting* routing) {
  kernels::Backend* backend = context.backend;
  const LayerShape shape(context);
  const int64_t tokens = shape.tokens;
  const auto allocate = [&](int64_t columns, DeviceArray<float>* to) -> absl::Status {
    SB_ASSIGN_OR_RETURN(*to, backend->Allocate<float>(tokens * columns));
    return absl::OkStatus();
  };

  SB_RETURN_IF_ERROR(allocate(shape.hidden, &saved->norm1));
  SB_RETURN_IF_ERROR(allocate(1, &saved->inverse_rms1));
  SB_RETURN_IF_ERROR(backend->RmsNormForward(shape.norm, x, weights.input_norm, saved->norm1.span(),
                                             saved->inverse_rms1.span()));
  SB_RETURN_IF_ERROR(allocate(shape.qkv_width, &saved->qkv));
  const DeviceBuffer qkv = saved->qkv.span();
  SB_RETURN_IF_ERROR(Project(backend, tokens, shape.hidden, shape.qkv_width, saved->norm1.span(),
                             weights.qkv, weights.qkv_bias, false, qkv));
  SB_RETURN_IF_ERROR(backend->Rope(shape.rope, context.rope_table, false, qkv));
  if (routing != nullptr) {
    SB_RETURN_IF_ERROR(Route(context, shape, qkv, &saved->lists, routing));
  }

  SB_RETURN_IF_ERROR(allocate(shape.q_width, &saved->attention));
  SB_RETURN_IF_ERROR(allocate(context.config.num_heads, &saved->lse));
  SB_RETURN_IF_ERROR(backend->AttentionForward(shape.attention, context.layout, saved->lists, qkv,
                                               shape.Key(qkv), shape.Value(qkv),
                                               saved->attention.span(), saved->lse.span()));

  SB_RETURN_IF_ERROR(allocate(shape.hidden, &saved->middle));
  SB_RETURN_IF_ERROR(backend->CopyDeviceToDevice(x, saved->middle.span()));
  SB_RETURN_IF_ERROR(Project(backend, tokens, shape.q_width, shape.hidden, saved->attention.span(),
                             weights.attention_out, {}, true, saved->middle.span()));

  SB_RETURN_IF_ERROR(allocate(shape.hidden, &saved->norm2));
  SB_RETURN_IF_ERROR(allocate(1, &saved->inverse_rms2));
  SB_RETURN_IF_ERROR(backend->RmsNormForward(shape.norm, saved->middle.span(),
                                             weights.post_attention_norm, saved->norm2.span(),
                                             saved->inverse_rms2.span()));
  SB_RETURN_IF_ERROR(allocate(2 * shape.ffn, &saved->gate_up));
  SB_RETURN_IF_ERROR(Project(backend, tokens, shape.hidden, 2 * shape.ffn, saved->norm2.span(),
                             weights.gate_up, {}, false, saved->gate_up.span()));
  SB_RETURN_IF_ERROR(allocate(shape.ffn, &saved->activated));
  SB_RETURN_IF_ERROR(
      backend->SwiGluForward(tokens, shape.ffn, saved->gate_up.span(), saved->activated.span()));
  if (out.empty()) return absl::OkStatus();
  SB_RETURN_IF_ERROR(backend->CopyDeviceToDevice(saved->middle.span(), out));
  return Project(backend, tokens, shape.ffn, shape.hidden, saved->activated.span(), weights.down,
                 {}, true, out);
}

absl::Status LayerBackward(const PassContext& context, const LayerWeights& weights,
                           const LayerWeights& weight_grads, ConstDeviceBuffer x,
                           LayerActivations saved, DeviceBuffer grad) {
  kernels::Backend* backend = context.backend;
  const LayerShape shape(context);
  const int64_t tokens = shape.tokens;
  {
    SB_ASSIGN_OR_RETURN(DeviceArray<float> activated_grad,
                        backend->Allocate<float>(tokens * shape.ffn));
    SB_ASSIGN_OR_RETURN(DeviceArray<float> gate_up_grad,
                        backend->Allocate<float>(tokens * 2 * shape.ffn));
    SB_ASSIGN_OR_RETURN(DeviceArray<float> norm_grad,
                        backend->Allocate<float>(tokens * shape.hidden));
    SB_RETURN_IF_ERROR(ProjectBackward(backend, tokens, shape.ffn, shape.hidden,
                                       saved.activated.span(), weights.down, grad,
                                       activated_grad.span(), weight_grads.down));
    SB_RETURN_IF_ERROR(backend->SwiGluBackward(tokens, shape.ffn, saved.gate_up.span(),
                                               activated_grad.span(), gate_up_grad.span()));
    SB_RETURN_IF_ERROR(ProjectBackward(backend, tokens, shape.hidden, 2 * shape.ffn,
                                       saved.norm2.span(), weights.gate_up, gate_up_grad.span(),
                                       norm_grad.span(), weight_grads.gate_up));
    // The residual path is already in grad: the norm adds to it.
    SB_RETURN_IF_ERROR(backend->RmsNormBackward(
        shape.norm, saved.middle.span(), weights.post_attention_norm, saved.inverse_rms2.span(),
        norm_grad.span(), grad, weight_grads.post_attention_norm));
    for (DeviceArray<float>* used :
         {&saved.activated, &saved.gate_up, &saved.norm2, &saved.inverse_rms2, &saved.middle}) {
      *used = {};
    }
  }
  SB_ASSIGN_OR_RETURN(DeviceArray<float> attention_grad,
                      backend->Allocate<float>(tokens * shape.q_width));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> qkv_grad_array,
                      backend->Allocate<float>(tokens * shape.qkv_width));
  const DeviceBuffer qkv_grad = qkv_grad_array.span();
  const ConstDeviceBuffer qkv = saved.qkv.span();
  SB_RETURN_IF_ERROR(ProjectBackward(backend, tokens, shape.q_width, shape.hidden,
                                     saved.attention.span(), weights.attention_out, grad,
                                     attention_grad.span(), weight_grads.attention_out));
  SB_RETURN_IF_ERROR(backend->AttentionBackward(
      shape.attention, context.layout, saved.lists, qkv, shape.Key(qkv), shape.Value(qkv),
      saved.attention.span(), saved.lse.span(), attention_grad.span(), qkv_grad,
      shape.Key(qkv_grad), shape.Value(qkv_grad)));
  SB_RETURN_IF_ERROR(backend->Rope(shape.rope, context.rope_table, true, qkv_grad));
  SB_RETURN_IF_ERROR(
      backend->AddColumnSums(tokens, shape.qkv_width, qkv_grad, weight_grads.qkv_bias));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> norm_grad,
                      backend->Allocate<float>(tokens * shape.hidden));
  SB_RETURN_IF_ERROR(ProjectBackward(backend, tokens, shape.hidden, shape.qkv_width,
                                     saved.norm1.span(), weights.qkv, qkv_grad, norm_grad.span(),
                                     weight_grads.qkv));
  return backend->RmsNormBackward(shape.norm, x, weights.input_norm, saved.inverse_rms1.span(),
                                  norm_grad.span(), grad, weight_grads.input_norm);
}

}  // namespace sparsebalance::model
