#include "worker/model/parameters.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/model/random.h"

namespace sparsebalance::model {
namespace {

enum class Init { kNormal, kZero, kOne };

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

  int64_t size() const { return size_; }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  std::vector<Slot> slots_;
  int64_t size_ = 0;
};

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
  return out;
}

// Names the parts of an arena; walks the slots in the order in which LayOut added them.
ModelWeights MakeViews(const ModelConfig& config, const std::vector<Slot>& slots,
                       DeviceBuffer arena) {
  size_t next = 0;
  const auto take = [&](size_t parameters) {
    const int64_t begin = slots[next].offset;
    next += parameters;
    return arena.Slice(begin, slots[next - 1].offset + slots[next - 1].count - begin);
  };
  ModelWeights out;
  out.embedding = take(1);
  for (int l = 0; l < config.num_layers; ++l) {
    LayerWeights w;
    w.input_norm = take(1);
    w.qkv = take(3);
    w.qkv_bias = take(3);
    w.attention_out = take(1);
    w.post_attention_norm = take(1);
    w.gate_up = take(2);
    w.down = take(1);
    out.layers.push_back(w);
  }
  out.final_norm = take(1);
  out.output = config.tie_embeddings ? out.embedding : take(1);
  return out;
}

absl::Status Initialize(const Slot& slot, double range, uint64_t seed, kernels::Backend* backend,
                        DeviceBuffer to) {
  if (slot.init != Init::kNormal) return backend->Fill(to, slot.init == Init::kOne ? 1.0F : 0.0F);
  const NormalStream stream(seed, slot.name);
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<float> host;
  for (int64_t begin = 0; begin < slot.count; begin += kPiece) {
    const int64_t count = std::min(kPiece, slot.count - begin);
    host.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      host[i] = static_cast<float>(range * stream.At(static_cast<uint64_t>(begin + i)));
    }
    SB_RETURN_IF_ERROR(backend->CopyToDevice(host, to.Slice(begin, count)));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ParameterArenaSize(const ModelConfig& config) { return LayOut(config).size(); }

std::vector<ParameterShape> ParameterShapes(const ModelConfig& config) {
  const ArenaLayout layout = LayOut(config);
  std::vector<ParameterShape> out;
  for (const Slot& slot : layout.slots()) out.push_back({slot.name, slot.shape});
  return out;
}

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(const ModelConfig& config,
                                                                       kernels::Backend* backend,
                                                                       uint64_t seed) {
  SB_RETURN_IF_ERROR(config.Validate());
  const ArenaLayout layout = LayOut(config);
  std::unique_ptr<ParameterStore> store(new ParameterStore());
  SB_ASSIGN_OR_RETURN(store->values_, backend->Allocate<float>(layout.size()));
  SB_ASSIGN_OR_RETURN(store->grads_, backend->Allocate<float>(layout.size()));
  SB_RETURN_IF_ERROR(backend->Fill(store->values(), 0.0F));
  SB_RETURN_IF_ERROR(backend->Fill(store->grads(), 0.0F));
  for (const Slot& slot : layout.slots()) {
    Parameter p;
    p.name = slot.name;
    p.shape = slot.shape;
    p.value = store->values().Slice(slot.offset, slot.count);
    p.grad = store->grads().Slice(slot.offset, slot.count);
    p.weight_decay = slot.shape.size() > 1;
    p.arena_offset = slot.offset;
    SB_RETURN_IF_ERROR(Initialize(slot, config.initializer_range, seed, backend, p.value));
    store->parameters_.push_back(std::move(p));
  }
  store->value_views_ = MakeViews(config, layout.slots(), store->values());
  store->grad_views_ = MakeViews(config, layout.slots(), store->grads());
  return store;
}

}  // namespace sparsebalance::model
