#include "worker/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/model/random.h"

namespace sparsebalance::model {
namespace {

enum class Init { kNormal, kUniform, kZero, kOne };

struct Slot {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset;
  int64_t count;
  Init init;
};

// Lays parameters out one after the other; groups that kernels see as one matrix have no gap.
class ArenaLayout {
 public:
  void Add(std::string name, std::vector<int64_t> shape, Init init) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    slots_.push_back({std::move(name), std::move(shape), size_, count, init});
    size_ += count;
  }
  // Devices load 16 bytes at a time, cache lines and transactions are up to 128 bytes.
  void Align() { size_ = (size_ + 31) / 32 * 32; }

  // What is added from here on is trained, and nothing before it.
  void FreezeAll() {
    Align();
    trainable_begin_ = size_;
  }

  int64_t size() const { return size_; }
  int64_t trainable_begin() const { return trainable_begin_; }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  std::vector<Slot> slots_;
  int64_t size_ = 0;
  int64_t trainable_begin_ = 0;
};

// Projections of a layer that read the same input.
struct AdapterGroup {
  ProjectionWeights LayerWeights::*member;
  int64_t inputs;
  struct Part {
    Projection projection;
    const char* module;  // within the layer
    int64_t outputs;
  };
  std::vector<Part> parts;
};

std::vector<AdapterGroup> AdapterGroups(const ModelConfig& c) {
  using enum Projection;
  const int64_t q_width = static_cast<int64_t>(c.num_heads) * c.HeadDim();
  const int64_t kv_width = static_cast<int64_t>(c.num_kv_heads) * c.HeadDim();
  return {
      {&LayerWeights::qkv,
       c.hidden_size,
       {{kQuery, "self_attn.q_proj", q_width},
        {kKey, "self_attn.k_proj", kv_width},
        {kValue, "self_attn.v_proj", kv_width}}},
      {&LayerWeights::attention_out, q_width, {{kOutput, "self_attn.o_proj", c.hidden_size}}},
      {&LayerWeights::gate_up,
       c.hidden_size,
       {{kGate, "mlp.gate_proj", c.intermediate_size}, {kUp, "mlp.up_proj", c.intermediate_size}}},
      {&LayerWeights::down, c.intermediate_size, {{kDown, "mlp.down_proj", c.hidden_size}}}};
}

// Calls visit(layer, group, its parts with adapters) for every group that has one, in the order of
// the arena.
template <typename Visit>
void ForEachAdapterGroup(const ModelConfig& c, Visit visit) {
  if (!c.lora.enabled()) return;
  const std::vector<AdapterGroup> groups = AdapterGroups(c);
  for (int l = 0; l < c.num_layers; ++l) {
    for (const AdapterGroup& group : groups) {
      std::vector<AdapterGroup::Part> parts;
      for (const AdapterGroup::Part& part : group.parts) {
        if (c.lora.Targets(part.projection)) parts.push_back(part);
      }
      if (!parts.empty()) visit(l, group, parts);
    }
  }
}

void LayOutAdapters(const ModelConfig& c, ArenaLayout* out) {
  if (!c.lora.enabled()) return;
  out->FreezeAll();
  const int64_t rank = c.lora.rank;
  ForEachAdapterGroup(
      c, [&](int layer, const AdapterGroup& group, const std::vector<AdapterGroup::Part>& parts) {
        const std::string prefix = absl::StrCat("model.layers.", layer, ".");
        for (const AdapterGroup::Part& part : parts) {
          out->Add(absl::StrCat(prefix, part.module, ".lora_A.weight"), {rank, group.inputs},
                   Init::kUniform);
        }
        for (const AdapterGroup::Part& part : parts) {
          out->Align();
          out->Add(absl::StrCat(prefix, part.module, ".lora_B.weight"), {part.outputs, rank},
                   Init::kZero);
        }
        out->Align();
      });
}

ArenaLayout LayOut(const ModelConfig& c) {
  const int64_t hidden = c.hidden_size;
  const int64_t q_width = static_cast<int64_t>(c.num_heads) * c.HeadDim();
  const int64_t kv_width = static_cast<int64_t>(c.num_kv_heads) * c.HeadDim();
  const int64_t ffn = c.intermediate_size;
  ArenaLayout out;
  out.Add("model.embed_tokens.weight", {c.vocab_size, hidden}, Init::kNormal);
  for (int l = 0; l < c.num_layers; ++l) {
    const std::string layer = absl::StrCat("model.layers.", l, ".");
    out.Align();
    out.Add(layer + "input_layernorm.weight", {hidden}, Init::kOne);
    out.Align();
    out.Add(layer + "self_attn.q_proj.weight", {q_width, hidden}, Init::kNormal);
    out.Add(layer + "self_attn.k_proj.weight", {kv_width, hidden}, Init::kNormal);
    out.Add(layer + "self_attn.v_proj.weight", {kv_width, hidden}, Init::kNormal);
    out.Align();
    out.Add(layer + "self_attn.q_proj.bias", {q_width}, Init::kZero);
    out.Add(layer + "self_attn.k_proj.bias", {kv_width}, Init::kZero);
    out.Add(layer + "self_attn.v_proj.bias", {kv_width}, Init::kZero);
    out.Align();
    out.Add(layer + "self_attn.o_proj.weight", {hidden, q_width}, Init::kNormal);
    out.Align();
    out.Add(layer + "post_attention_layernorm.weight", {hidden}, Init::kOne);
    out.Align();
    out.Add(layer + "mlp.gate_proj.weight", {ffn, hidden}, Init::kNormal);
    out.Add(layer + "mlp.up_proj.weight", {ffn, hidden}, Init::kNormal);
    out.Align();
    out.Add(layer + "mlp.down_proj.weight", {hidden, ffn}, Init::kNormal);
  }
  out.Align();
  out.Add("model.norm.weight", {hidden}, Init::kOne);
  if (!c.tie_embeddings) {
    out.Align();
    out.Add("lm_head.weight", {c.vocab_size, hidden}, Init::kNormal);
  }
  out.Align();
  LayOutAdapters(c, &out);
  return out;
}

// Names the parts of an arena that holds the layout from element `begin` on; what lies before it is
// empty. Walks the slots in the order in which LayOut added them.
ModelWeights MakeViews(const ModelConfig& config, const std::vector<Slot>& slots, int64_t begin,
                       DeviceBuffer arena) {
  size_t next = 0;
  const auto take = [&](size_t parameters) {
    const int64_t first = slots[next].offset;
    next += parameters;
    const int64_t end = slots[next - 1].offset + slots[next - 1].count;
    return first < begin ? DeviceBuffer() : arena.Slice(first - begin, end - first);
  };
  ModelWeights out;
  out.embedding = take(1);
  for (int l = 0; l < config.num_layers; ++l) {
    LayerWeights w;
    w.input_norm = take(1);
    w.qkv.weight = take(3);
    w.qkv.bias = take(3);
    w.attention_out.weight = take(1);
    w.post_attention_norm = take(1);
    w.gate_up.weight = take(2);
    w.down.weight = take(1);
    out.layers.push_back(w);
  }
  out.final_norm = take(1);
  out.output = config.tie_embeddings ? out.embedding : take(1);
  ForEachAdapterGroup(config, [&](int layer, const AdapterGroup& group,
                                  const std::vector<AdapterGroup::Part>& parts) {
    AdapterWeights& adapters = (out.layers[static_cast<size_t>(layer)].*group.member).adapters;
    adapters.a = take(parts.size());
    for (const AdapterGroup::Part& part : parts) {
      int64_t first_output = 0;
      for (const AdapterGroup::Part& other : group.parts) {
        if (other.projection == part.projection) break;
        first_output += other.outputs;
      }
      adapters.parts.push_back({first_output, part.outputs, take(1)});
    }
  });
  return out;
}

// Where the parts of the gradients begin, by the names of the parameters; and the end.
std::vector<int64_t> GradBounds(const ModelConfig& config, const std::vector<Slot>& slots,
                                int64_t begin, int64_t end) {
  const auto layers = static_cast<size_t>(config.num_layers);
  std::vector<int64_t> bounds(layers + 3, end - begin);
  bounds[0] = 0;
  const auto starts = [&](size_t part, int64_t offset) {
    bounds[part] = std::min(bounds[part], offset - begin);
  };
  for (const Slot& slot : slots) {
    if (slot.offset < begin) continue;
    if (absl::StartsWith(slot.name, "model.embed_tokens.")) continue;
    int layer = -1;
    if (absl::StartsWith(slot.name, "model.layers.")) {
      layer = std::atoi(slot.name.c_str() + std::string_view("model.layers.").size());
    }
    starts(layer >= 0 ? static_cast<size_t>(layer) + 1 : layers + 1, slot.offset);
  }
  // A part without parameters is empty: it ends where it begins.
  for (size_t p = layers + 2; p-- > 1;) bounds[p] = std::min(bounds[p], bounds[p + 1]);
  return bounds;
}

// Norm weights are few, and errors in them are errors of whole columns.
void KeepNorms(const ModelWeights& from, ModelWeights* to) {
  for (size_t l = 0; l < from.layers.size(); ++l) {
    to->layers[l].input_norm = from.layers[l].input_norm;
    to->layers[l].post_attention_norm = from.layers[l].post_attention_norm;
  }
  to->final_norm = from.final_norm;
}

absl::Status Initialize(const Slot& slot, double range, uint64_t seed, kernels::Backend* backend,
                        DeviceBuffer to) {
  if (slot.init == Init::kOne || slot.init == Init::kZero) {
    return backend->Fill(to, slot.init == Init::kOne ? 1.0F : 0.0F);
  }
  const RandomStream stream(seed, slot.name);
  const double bound = 1.0 / std::sqrt(static_cast<double>(slot.shape.back()));  // of uniform ones
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<float> host;
  for (int64_t begin = 0; begin < slot.count; begin += kPiece) {
    const int64_t count = std::min(kPiece, slot.count - begin);
    host.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<uint64_t>(begin + i);
      host[i] = slot.init == Init::kNormal ? static_cast<float>(range * stream.At(position))
                                           : static_cast<float>(bound * stream.UniformAt(position));
    }
    SB_RETURN_IF_ERROR(backend->CopyToDevice(host, to.Slice(begin, count)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParameterStore::Write(int64_t begin, std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size());
  if (begin < 0 || count > values_.size() - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("values ", begin, " to ", begin + count, " of a model of ", values_.size()));
  }
  copy_is_stale_ = true;
  return backend_->CopyToDevice(values.data(), values_.span().Slice(begin, count));
}

absl::Status ParameterStore::Write(const Parameter& parameter, std::span<const float> values) {
  if (static_cast<int64_t>(values.size()) != parameter.value.size()) {
    return absl::InvalidArgumentError(absl::StrCat(values.size(), " values for ", parameter.name,
                                                   ", which has ", parameter.value.size()));
  }
  return Write(parameter.arena_offset, values);
}

absl::Status ParameterStore::RefreshCompute() {
  if (!copy_is_stale_) return absl::OkStatus();
  if (copy_.size() > 0) {
    SB_RETURN_IF_ERROR(backend_->CopyDeviceToDevice(values(), copy_.span()));
  }
  copy_is_stale_ = false;
  return absl::OkStatus();
}

ParameterStore::Optimized ParameterStore::OptimizerViews(int64_t begin, int64_t count) const {
  const int64_t first = trainable_begin_ + begin;
  return {grads().Slice(begin, count), DeviceBuffer(values_.span()).Slice(first, count),
          copy_.size() > 0 ? copy_.span().Slice(first, count) : DeviceBuffer()};
}

ArenaSizes ParameterArenaSizes(const ModelConfig& config) {
  const ArenaLayout layout = LayOut(config);
  return {.values = layout.size(), .trainable = layout.size() - layout.trainable_begin()};
}

std::vector<ParameterShape> ParameterShapes(const ModelConfig& config) {
  const ArenaLayout layout = LayOut(config);
  std::vector<ParameterShape> out;
  for (const Slot& slot : layout.slots()) out.push_back({slot.name, slot.shape});
  return out;
}

std::vector<ParameterShape> BaseShapes(const ModelConfig& config) {
  ModelConfig base = config;
  base.lora = {};
  return ParameterShapes(base);
}

std::vector<ParameterShape> AdapterShapes(const ModelConfig& config) {
  std::vector<ParameterShape> out = ParameterShapes(config);
  out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(BaseShapes(config).size()));
  return out;
}

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(const ModelConfig& config,
                                                                       kernels::Backend* backend,
                                                                       uint64_t seed) {
  SB_RETURN_IF_ERROR(config.Validate());
  const ArenaLayout layout = LayOut(config);
  const int64_t begin = layout.trainable_begin();
  std::unique_ptr<ParameterStore> store(new ParameterStore(backend));
  store->trainable_begin_ = begin;
  SB_ASSIGN_OR_RETURN(store->values_,
                      backend->Allocate<float>(layout.size(), kernels::MemoryPurpose::kState));
  SB_ASSIGN_OR_RETURN(store->grads_, backend->Allocate<float>(layout.size() - begin,
                                                              kernels::MemoryPurpose::kState));
  const DeviceBuffer values = store->values_.span();
  SB_RETURN_IF_ERROR(backend->Fill(values, 0.0F));
  SB_RETURN_IF_ERROR(backend->Fill(store->grads(), 0.0F));
  for (const Slot& slot : layout.slots()) {
    Parameter p;
    p.name = slot.name;
    p.shape = slot.shape;
    p.value = values.Slice(slot.offset, slot.count);
    if (slot.offset >= begin) p.grad = store->grads().Slice(slot.offset - begin, slot.count);
    p.arena_offset = slot.offset;
    SB_RETURN_IF_ERROR(Initialize(slot, config.initializer_range, seed, backend,
                                  values.Slice(slot.offset, slot.count)));
    store->parameters_.push_back(std::move(p));
  }
  store->base_count_ = BaseShapes(config).size();
  store->grad_bounds_ = GradBounds(config, layout.slots(), begin, layout.size());
  const ModelWeights value_views = MakeViews(config, layout.slots(), 0, values);
  if (backend->activation_type() == kernels::ElementType::kFloat32) {
    store->compute_views_ = value_views;
  } else {
    SB_ASSIGN_OR_RETURN(store->copy_,
                        backend->AllocateTensor(layout.size(), backend->activation_type(),
                                                kernels::MemoryPurpose::kState));
    store->compute_views_ = MakeViews(config, layout.slots(), 0, store->copy_.span());
    KeepNorms(value_views, &store->compute_views_);
  }
  store->grad_views_ = MakeViews(config, layout.slots(), begin, store->grads());
  return store;
}

}  // namespace sparsebalance::model
