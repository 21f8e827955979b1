#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  // Views into the arenas; frozen parameters have no gradient. ParameterStore::Write sets values.
  ConstDeviceBuffer value;
  DeviceBuffer grad;
  int64_t arena_offset = 0;  // elements before it in the arena of values

  bool trainable() const { return !grad.empty(); }
  bool is_matrix() const { return shape.size() > 1; }
};

// Adapters of projections that read the same input and write side by side.
struct AdapterWeights {
  struct Part {
    int64_t first_output, outputs;  // the columns that it adds to
    DeviceBuffer b;                 // [outputs, rank]
  };
  DeviceBuffer a;           // [rank * parts, inputs]: the A of all parts, one below the other
  std::vector<Part> parts;  // empty where none of the projections has an adapter
};

struct ProjectionWeights {
  DeviceBuffer weight;  // [outputs, inputs]
  DeviceBuffer bias;    // [outputs], or empty
  AdapterWeights adapters;
};

// Views of a layer's weights as it computes with them, or of their gradients; those of frozen
// gradients are empty. q, k and v projections lie side by side and are one matrix to the kernels;
// so do gate and up.
struct LayerWeights {
  DeviceBuffer input_norm;           // [hidden]
  ProjectionWeights qkv;             // [(heads + 2 kv heads) * head_dim, hidden]
  ProjectionWeights attention_out;   // [hidden, heads * head_dim]
  DeviceBuffer post_attention_norm;  // [hidden]
  ProjectionWeights gate_up;         // [2 * intermediate, hidden]
  ProjectionWeights down;            // [hidden, intermediate]
};

struct ModelWeights {
  DeviceBuffer embedding;  // [vocabulary, hidden]
  std::vector<LayerWeights> layers;
  DeviceBuffer final_norm;
  DeviceBuffer output;  // [vocabulary, hidden]; the embedding where tied
};

// Elements of the arenas: parameters and the gaps between them.
struct ArenaSizes {
  int64_t values = 0;     // and their copy, where there is one
  int64_t trainable = 0;  // gradients, and each moment of the optimizer
};
ArenaSizes ParameterArenaSizes(const ModelConfig& config);

// What a model of a config consists of, in the order of ParameterStore::parameters(): first the
// model itself, then its adapters.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<ParameterShape> ParameterShapes(const ModelConfig& config);
// The model without its adapters.
std::vector<ParameterShape> BaseShapes(const ModelConfig& config);
// The adapters alone: MODULE.lora_A.weight and MODULE.lora_B.weight, MODULE being the name of the
// projection without `.weight`.
std::vector<ParameterShape> AdapterShapes(const ModelConfig& config);

// All values in one arena, and all gradients in another that is laid out as the trainable part of
// the first, so that gradients can be reduced in buckets that do not care for parameters. That part
// is everything, or with adapters these alone. Gaps between parameters hold zeros.
//
// Values are float32. A backend with activations of another type computes with a copy of them in
// that type, but for norm weights; the optimizer writes both.
class ParameterStore {
 public:
  // Matrices are normal with the config's initializer_range, biases 0, norm weights 1. Adapters
  // begin as no change: A is uniform within 1 / sqrt(inputs), B is 0. The same seed gives the same
  // bits on any machine. RESOURCE_EXHAUSTED where the arenas do not fit.
  static absl::StatusOr<std::unique_ptr<ParameterStore>> Create(const ModelConfig& config,
                                                                kernels::Backend* backend,
                                                                uint64_t seed);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::span<const Parameter> base_parameters() const {
    return std::span(parameters_).first(base_count_);
  }
  std::span<const Parameter> adapter_parameters() const {
    return std::span(parameters_).subspan(base_count_);
  }
  ConstDeviceBuffer values() const { return values_.span(); }
  DeviceBuffer grads() const { return grads_.span(); }
  // The values that grads() belong to, and where they begin in values().
  ConstDeviceBuffer trainable_values() const { return values().Slice(trainable_begin_); }
  int64_t trainable_begin() const { return trainable_begin_; }

  // Replaces values from element `begin` of values() on. INVALID_ARGUMENT where they do not fit.
  absl::Status Write(int64_t begin, std::span<const float> values);
  // All of one parameter.
  absl::Status Write(const Parameter& parameter, std::span<const float> values);

  // grads() in parts that backward finishes as a whole: part 0 is the embedding (and the output
  // matrix where they are tied), 1 to num_layers the layers, the last the loss head. Part p is
  // [bounds[p], bounds[p + 1]), and may be empty.
  const std::vector<int64_t>& grad_bounds() const { return grad_bounds_; }

  // What a pass computes with. It is as new as the values after a call of RefreshCompute, which
  // costs nothing where nothing was written.
  absl::Status RefreshCompute();
  const ModelWeights& compute_views() const { return compute_views_; }
  const ModelWeights& grad_views() const { return grad_views_; }

  // Elements [begin, begin + count) of grads() and of what belongs to them, for an optimizer. It
  // must write `copy` together with `value`; it is empty where computing needs no copy.
  struct Optimized {
    DeviceBuffer grad, value, copy;
  };
  Optimized OptimizerViews(int64_t begin, int64_t count) const;

 private:
  explicit ParameterStore(kernels::Backend* backend) : backend_(backend) {}

  kernels::Backend* backend_;
  std::vector<Parameter> parameters_;
  size_t base_count_ = 0;
  kernels::DeviceArray<float> values_;
  kernels::DeviceArray<float> grads_;
  kernels::DeviceTensor copy_;  // of values_; empty where activations are float32
  bool copy_is_stale_ = true;
  int64_t trainable_begin_ = 0;
  std::vector<int64_t> grad_bounds_;
  ModelWeights compute_views_;
  ModelWeights grad_views_;
};

}  // namespace sparsebalance::model
