#include "worker/model/layer.h"

#include <memory>
#include <utility>

#include "kernels/status_macros.h"

namespace sparsebalance::model {
namespace {

using kernels::DeviceArray;
using kernels::DeviceTensor;

// Places of dropout within a layer; site 0 is the embedding.
enum Site : uint32_t {
  kQkvAdapters,
  kOutAdapters,
  kGateUpAdapters,
  kDownAdapters,
  kAttention,
  kMlp
};
constexpr uint32_t kSites = 6;

// Sizes of one layer, and where q, k and v lie in a row of the joint projection.
struct LayerShape {
  LayerShape(const PassContext& c, int layer)
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
                  qkv_width,          q_width} {
    const LoraConfig& lora = c.config.lora;
    const auto drop = [&](Site site, float rate) {
      return Dropout{c.dropout_keys, rate, 1 + static_cast<uint32_t>(layer) * kSites + site};
    };
    const auto projection = [&](int64_t inputs, int64_t outputs, Site site) {
      return ProjectionShape{tokens,
                             inputs,
                             outputs,
                             lora.rank,
                             lora.enabled() ? lora.Scale() : 1.0F,
                             drop(site, lora.enabled() ? lora.dropout : 0.0F)};
    };
    qkv = projection(hidden, qkv_width, kQkvAdapters);
    attention_out = projection(q_width, hidden, kOutAdapters);
    gate_up = projection(hidden, 2 * ffn, kGateUpAdapters);
    down = projection(ffn, hidden, kDownAdapters);
    attention_dropout = drop(kAttention, c.config.dropout);
    mlp_dropout = drop(kMlp, c.config.dropout);
  }

  template <typename Span>
  Span Key(Span rows) const {
    return rows.Slice(q_width);
  }
  template <typename Span>
  Span Value(Span rows) const {
    return rows.Slice(q_width + kv_width);
  }

  int64_t tokens, hidden, q_width, kv_width, qkv_width, ffn;
  kernels::NormShape norm;
  kernels::RopeShape rope;
  kernels::AttentionShape attention;
  ProjectionShape qkv, attention_out, gate_up, down;
  Dropout attention_dropout, mlp_dropout;
};

// Means of the keys, coverage, the guard, and the selection of blocks.
absl::Status Route(const PassContext& context, const LayerShape& shape, ConstDeviceBuffer qkv,
                   kernels::BlockLists* lists, LayerRouting* routing) {
  kernels::Backend* backend = context.backend;
  const kernels::PackedBlocks& blocks = context.layout.blocks();
  SB_ASSIGN_OR_RETURN(DeviceArray<float> means,
                      backend->Allocate<float>(shape.kv_width * blocks.blocks()));
  SB_RETURN_IF_ERROR(
      backend->BlockMeans(shape.attention, context.layout, shape.Key(qkv), means.span()));
  SB_ASSIGN_OR_RETURN(kernels::Routing routed,
                      backend->Route(shape.attention, context.layout, qkv, means.span(),
                                     {.planned = routing->planned_budgets,
                                      .base = context.base_budgets,
                                      .coverage_guard = context.coverage_guard,
                                      .sample_stride = context.config.coverage_sample_stride}));
  *lists = std::move(routed.lists);
  routing->facts = std::move(routed.facts);
  if (routing->audit_queries > 0) {
    SB_ASSIGN_OR_RETURN(routing->audit_begin, backend->RecordEvent());
    SB_ASSIGN_OR_RETURN(routing->attention_mass,
                        backend->AttentionMass(shape.attention, context.layout, *lists, qkv,
                                               shape.Key(qkv), routing->audit_queries));
    SB_ASSIGN_OR_RETURN(routing->audit_end, backend->RecordEvent());
  }
  return absl::OkStatus();
}

}  // namespace

Dropout EmbeddingDropout(const PassContext& context) {
  return {context.dropout_keys, context.config.dropout, 0};
}

absl::Status LayerForward(const PassContext& context, int layer, const LayerWeights& weights,
                          ConstDeviceBuffer x, DeviceBuffer out, LayerActivations* saved,
                          LayerRouting* routing) {
  kernels::Backend* backend = context.backend;
  const LayerShape shape(context, layer);
  const int64_t tokens = shape.tokens;
  const auto allocate = [&](int64_t columns, DeviceTensor* to) -> absl::Status {
    SB_ASSIGN_OR_RETURN(*to, backend->AllocateActivations(tokens * columns));
    return absl::OkStatus();
  };
  const auto allocate_floats = [&](int64_t columns, DeviceArray<float>* to) -> absl::Status {
    SB_ASSIGN_OR_RETURN(*to, backend->Allocate<float>(tokens * columns));
    return absl::OkStatus();
  };

  SB_RETURN_IF_ERROR(allocate(shape.hidden, &saved->norm1));
  SB_RETURN_IF_ERROR(allocate_floats(1, &saved->inverse_rms1));
  SB_RETURN_IF_ERROR(backend->RmsNormForward(shape.norm, x, weights.input_norm, saved->norm1.span(),
                                             saved->inverse_rms1.span()));
  SB_RETURN_IF_ERROR(allocate(shape.qkv_width, &saved->qkv));
  const DeviceBuffer qkv = saved->qkv.span();
  SB_RETURN_IF_ERROR(
      Project(backend, shape.qkv, weights.qkv, saved->norm1.span(), /*accumulate=*/false, qkv));
  SB_RETURN_IF_ERROR(backend->Rope(shape.rope, context.rope_table, false, qkv));
  if (routing != nullptr) {
    SB_RETURN_IF_ERROR(Route(context, shape, qkv, &saved->lists, routing));
  }

  SB_RETURN_IF_ERROR(allocate(shape.q_width, &saved->attention));
  SB_RETURN_IF_ERROR(allocate_floats(context.config.num_heads, &saved->lse));
  SB_RETURN_IF_ERROR(backend->AttentionForward(shape.attention, context.layout, saved->lists, qkv,
                                               shape.Key(qkv), shape.Value(qkv),
                                               saved->attention.span(), saved->lse.span()));

  SB_RETURN_IF_ERROR(allocate(shape.hidden, &saved->middle));
  SB_RETURN_IF_ERROR(backend->CopyDeviceToDevice(x, saved->middle.span()));
  SB_RETURN_IF_ERROR(ProjectIntoStream(backend, shape.attention_out, weights.attention_out,
                                       shape.attention_dropout, saved->attention.span(),
                                       saved->middle.span()));

  SB_RETURN_IF_ERROR(allocate(shape.hidden, &saved->norm2));
  SB_RETURN_IF_ERROR(allocate_floats(1, &saved->inverse_rms2));
  SB_RETURN_IF_ERROR(backend->RmsNormForward(shape.norm, saved->middle.span(),
                                             weights.post_attention_norm, saved->norm2.span(),
                                             saved->inverse_rms2.span()));
  SB_RETURN_IF_ERROR(allocate(2 * shape.ffn, &saved->gate_up));
  SB_RETURN_IF_ERROR(Project(backend, shape.gate_up, weights.gate_up, saved->norm2.span(),
                             /*accumulate=*/false, saved->gate_up.span()));
  SB_RETURN_IF_ERROR(allocate(shape.ffn, &saved->activated));
  SB_RETURN_IF_ERROR(
      backend->SwiGluForward(tokens, shape.ffn, saved->gate_up.span(), saved->activated.span()));
  if (out.empty()) return absl::OkStatus();
  SB_RETURN_IF_ERROR(backend->CopyDeviceToDevice(saved->middle.span(), out));
  return ProjectIntoStream(backend, shape.down, weights.down, shape.mlp_dropout,
                           saved->activated.span(), out);
}

absl::Status LayerBackward(const PassContext& context, int layer, const LayerWeights& weights,
                           const LayerWeights& weight_grads, ConstDeviceBuffer x,
                           LayerActivations saved, DeviceBuffer grad) {
  kernels::Backend* backend = context.backend;
  const LayerShape shape(context, layer);
  const int64_t tokens = shape.tokens;
  {
    SB_ASSIGN_OR_RETURN(DeviceTensor activated_grad,
                        backend->AllocateActivations(tokens * shape.ffn));
    SB_ASSIGN_OR_RETURN(DeviceTensor gate_up_grad,
                        backend->AllocateActivations(tokens * 2 * shape.ffn));
    SB_ASSIGN_OR_RETURN(DeviceTensor norm_grad,
                        backend->AllocateActivations(tokens * shape.hidden));
    SB_RETURN_IF_ERROR(ProjectIntoStreamBackward(
        backend, shape.down, weights.down, weight_grads.down, shape.mlp_dropout,
        saved.activated.span(), grad, activated_grad.span()));
    SB_RETURN_IF_ERROR(backend->SwiGluBackward(tokens, shape.ffn, saved.gate_up.span(),
                                               activated_grad.span(), gate_up_grad.span()));
    SB_RETURN_IF_ERROR(ProjectBackward(backend, shape.gate_up, weights.gate_up,
                                       weight_grads.gate_up, saved.norm2.span(),
                                       gate_up_grad.span(), norm_grad.span()));
    // The residual path is already in grad: the norm adds to it.
    SB_RETURN_IF_ERROR(backend->RmsNormBackward(
        shape.norm, saved.middle.span(), weights.post_attention_norm, saved.inverse_rms2.span(),
        norm_grad.span(), grad, weight_grads.post_attention_norm));
    for (DeviceTensor* used : {&saved.activated, &saved.gate_up, &saved.norm2, &saved.middle}) {
      *used = {};
    }
    saved.inverse_rms2 = {};
  }
  SB_ASSIGN_OR_RETURN(DeviceTensor attention_grad,
                      backend->AllocateActivations(tokens * shape.q_width));
  SB_ASSIGN_OR_RETURN(DeviceTensor qkv_grad_array,
                      backend->AllocateActivations(tokens * shape.qkv_width));
  const DeviceBuffer qkv_grad = qkv_grad_array.span();
  const ConstDeviceBuffer qkv = saved.qkv.span();
  SB_RETURN_IF_ERROR(ProjectIntoStreamBackward(
      backend, shape.attention_out, weights.attention_out, weight_grads.attention_out,
      shape.attention_dropout, saved.attention.span(), grad, attention_grad.span()));
  SB_RETURN_IF_ERROR(backend->AttentionBackward(
      shape.attention, context.layout, saved.lists, qkv, shape.Key(qkv), shape.Value(qkv),
      saved.attention.span(), saved.lse.span(), attention_grad.span(), qkv_grad,
      shape.Key(qkv_grad), shape.Value(qkv_grad)));
  SB_RETURN_IF_ERROR(backend->Rope(shape.rope, context.rope_table, true, qkv_grad));
  SB_ASSIGN_OR_RETURN(DeviceTensor norm_grad, backend->AllocateActivations(tokens * shape.hidden));
  SB_RETURN_IF_ERROR(ProjectBackward(backend, shape.qkv, weights.qkv, weight_grads.qkv,
                                     saved.norm1.span(), qkv_grad, norm_grad.span()));
  return backend->RmsNormBackward(shape.norm, x, weights.input_norm, saved.inverse_rms1.span(),
                                  norm_grad.span(), grad, weight_grads.input_norm);
}

}  // namespace sparsebalance::model
