#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"
#include "worker/model/parameters.h"
#include "worker/model/projection.h"

namespace sparsebalance::model {

// What all layers of one pass share.
struct PassContext {
  const ModelConfig& config;
  kernels::Backend* backend;
  const kernels::AttentionLayout& layout;
  ConstDeviceBuffer rope_table;  // [tokens, head_dim]
  const std::vector<int32_t>& base_budgets;
  double coverage_guard;
  kernels::DeviceSpan<const uint64_t> dropout_keys;  // [tokens]; empty: nothing is dropped

  int64_t tokens() const { return layout.blocks().tokens(); }
};

// What a layer keeps from forward for backward. Backward uses the saved selection of blocks: to
// route again could break ties of scores differently.
struct LayerActivations {
  kernels::DeviceTensor norm1;               // [tokens, hidden]
  kernels::DeviceArray<float> inverse_rms1;  // [tokens]
  kernels::DeviceTensor qkv;                 // [tokens, q + k + v widths], rotated
  kernels::BlockLists lists;
  kernels::DeviceTensor attention;  // [tokens, q width]
  kernels::DeviceArray<float> lse;  // [heads, tokens]
  kernels::DeviceTensor middle;     // [tokens, hidden], after attention
  kernels::DeviceTensor norm2;
  kernels::DeviceArray<float> inverse_rms2;
  kernels::DeviceTensor gate_up, activated;  // [tokens, 2 * ffn], [tokens, ffn]
};

// Dropout of the embedding, which lies before all layers.
Dropout EmbeddingDropout(const PassContext& context);

// What the attention of a layer is to do and, for reports, did: one entry a sequence.
struct LayerRouting {
  std::vector<int32_t> planned_budgets;
  int audit_queries = 0;                           // 0: no audit
  std::unique_ptr<kernels::PendingRouting> facts;  // curves and realized budgets
  std::vector<double> attention_mass;              // of an audit
  // Around the audit, within the layer's forward pass; null without one.
  std::unique_ptr<kernels::Event> audit_begin, audit_end;
};

// out [tokens, hidden] = layer number `layer`, from 0, on x. Where `routing` is null, saved->lists
// are those to use, and with an empty `out` only `saved` is filled: what backward needs of a layer
// that was forgotten.
absl::Status LayerForward(const PassContext& context, int layer, const LayerWeights& weights,
                          ConstDeviceBuffer x, DeviceBuffer out, LayerActivations* saved,
                          LayerRouting* routing);

// grad [tokens, hidden]: in, the gradient of the layer's output; out, that of its input x.
// Adds to the weights' gradients. Frees activations as soon as they are used up.
absl::Status LayerBackward(const PassContext& context, int layer, const LayerWeights& weights,
                           const LayerWeights& weight_grads, ConstDeviceBuffer x,
                           LayerActivations saved, DeviceBuffer grad);

}  // namespace sparsebalance::model
