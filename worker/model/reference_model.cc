#include "worker/model/reference_model.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "kernels/packed_blocks.h"

namespace sparsebalance::model {
namespace {

namespace reference = kernels::reference;
using reference::Tensor;

// x [tokens, inputs] times weight^T [outputs, inputs], plus a bias if there is one.
Tensor Linear(int64_t tokens, const Tensor& x, const Tensor& weight, const Tensor* bias) {
  const auto inputs = static_cast<int64_t>(x.size()) / tokens;
  const auto outputs = static_cast<int64_t>(weight.size()) / inputs;
  Tensor y = reference::Matmul(tokens, outputs, inputs, x, false, weight, true);
  for (size_t i = 0; bias != nullptr && i < y.size(); ++i) y[i] += (*bias)[i % outputs];
  return y;
}

void AddTo(Tensor* x, const Tensor& y) {
  for (size_t i = 0; i < y.size(); ++i) (*x)[i] += y[i];
}

}  // namespace

double ReferenceLoss(const ModelConfig& config, const ReferenceParameters& parameters,
                     const MicroBatch& batch, ReferenceSelections* selections) {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  const reference::Heads heads{config.num_heads, config.num_kv_heads, config.HeadDim()};
  const kernels::PackedBlocks blocks =
      *kernels::MakePackedBlocks(batch.cu_seqlens, config.block_tokens);
  std::vector<int32_t> positions;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    for (int64_t i = 0; i < blocks.SequenceTokens(static_cast<int64_t>(s)); ++i) {
      positions.push_back(static_cast<int32_t>(i));
    }
  }
  const auto norm = [&](const Tensor& x, const std::string& name) {
    return reference::RmsNormForward(config.hidden_size, config.rms_norm_eps, x,
                                     parameters.at(name));
  };

  const Tensor& embedding = parameters.at("model.embed_tokens.weight");
  Tensor x = reference::EmbeddingForward(config.hidden_size, batch.tokens, embedding);
  for (int l = 0; l < config.num_layers; ++l) {
    const std::string layer = absl::StrCat("model.layers.", l, ".");
    const auto linear = [&](const Tensor& in, const std::string& name, bool bias) {
      return Linear(tokens, in, parameters.at(layer + name + ".weight"),
                    bias ? &parameters.at(layer + name + ".bias") : nullptr);
    };
    const Tensor normed = norm(x, layer + "input_layernorm.weight");
    const Tensor q = reference::Rope(heads.num_heads, heads.head_dim, config.rope_theta, positions,
                                     linear(normed, "self_attn.q_proj", true), false);
    const Tensor k = reference::Rope(heads.num_kv_heads, heads.head_dim, config.rope_theta,
                                     positions, linear(normed, "self_attn.k_proj", true), false);
    const Tensor v = linear(normed, "self_attn.v_proj", true);
    if (static_cast<int>(selections->size()) <= l) {
      selections->push_back(reference::SelectBlocks(heads, blocks, q, k, batch.budgets));
    }
    const Tensor attended =
        reference::AttentionForward(heads, blocks, (*selections)[l], q, k, v).out;
    AddTo(&x, linear(attended, "self_attn.o_proj", false));

    const Tensor normed2 = norm(x, layer + "post_attention_layernorm.weight");
    const Tensor gate = linear(normed2, "mlp.gate_proj", false);
    const Tensor up = linear(normed2, "mlp.up_proj", false);
    Tensor gate_up;
    const int64_t ffn = config.intermediate_size;
    for (int64_t t = 0; t < tokens; ++t) {
      gate_up.insert(gate_up.end(), gate.begin() + t * ffn, gate.begin() + (t + 1) * ffn);
      gate_up.insert(gate_up.end(), up.begin() + t * ffn, up.begin() + (t + 1) * ffn);
    }
    AddTo(&x, linear(reference::SwiGluForward(ffn, gate_up), "mlp.down_proj", false));
  }
  const Tensor logits =
      Linear(tokens, norm(x, "model.norm.weight"),
             config.tie_embeddings ? embedding : parameters.at("lm_head.weight"), nullptr);
  const Tensor weights(batch.loss_weights.begin(), batch.loss_weights.end());
  return reference::CrossEntropyLoss(config.vocab_size, logits, batch.targets, weights);
}

}  // namespace sparsebalance::model
