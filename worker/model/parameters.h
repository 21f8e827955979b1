#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"

namespace sparsebalance::model {

using kernels::ConstDeviceBuffer;
using kernels::DeviceBuffer;

struct Parameter {
  std::string name;            // as in Hugging Face Qwen2: model.layers.0.self_attn.q_proj.weight
  std::vector<int64_t> shape;  // matrices are [outputs, inputs]
  DeviceBuffer value, grad;    // views into the arenas
  bool weight_decay = false;   // matrices only
  int64_t arena_offset = 0;    // elements before it in both arenas
};

// Views that one layer computes with. q, k and v projections lie side by side and are one matrix to
// the kernels; so do gate and up.
struct LayerWeights {
  DeviceBuffer input_norm;           // [hidden]
  DeviceBuffer qkv, qkv_bias;        // [(heads + 2 kv heads) * head_dim, hidden], and its rows
  DeviceBuffer attention_out;        // [hidden, heads * head_dim]
  DeviceBuffer post_attention_norm;  // [hidden]
  DeviceBuffer gate_up;              // [2 * intermediate, hidden]
  DeviceBuffer down;                 // [hidden, intermediate]
};

struct ModelWeights {
  DeviceBuffer embedding;  // [vocabulary, hidden]
  std::vector<LayerWeights> layers;
  DeviceBuffer final_norm;
  DeviceBuffer output;  // [vocabulary, hidden]; the embedding where tied
};

// Elements of one arena: parameters and the gaps between them.
int64_t ParameterArenaSize(const ModelConfig& config);

// What a model of a config consists of, in the order of ParameterStore::parameters().
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<ParameterShape> ParameterShapes(const ModelConfig& config);

// All values in one arena and all gradients in another of the same layout, so that gradients can be
// reduced in buckets that do not care for parameters. Gaps between parameters hold zeros.
class ParameterStore {
 public:
  // Matrices are normal with the config's initializer_range, biases 0, norm weights 1. The same
  // seed gives the same bits on any machine. RESOURCE_EXHAUSTED where the arenas do not fit.
  static absl::StatusOr<std::unique_ptr<ParameterStore>> Create(const ModelConfig& config,
                                                                kernels::Backend* backend,
                                                                uint64_t seed);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  DeviceBuffer values() const { return values_.span(); }
  DeviceBuffer grads() const { return grads_.span(); }
  const ModelWeights& value_views() const { return value_views_; }
  const ModelWeights& grad_views() const { return grad_views_; }

 private:
  ParameterStore() = default;

  std::vector<Parameter> parameters_;
  kernels::DeviceArray<float> values_;
  kernels::DeviceArray<float> grads_;
  ModelWeights value_views_;
  ModelWeights grad_views_;
};

}  // namespace sparsebalance::model
