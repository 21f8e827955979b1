#include "worker/model/memory_model.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/packed_blocks.h"
#include "kernels/status_macros.h"
#include "worker/model/loss_head.h"
#include "worker/model/parameters.h"
#include "worker/model/projection.h"

namespace sparsebalance::model {
namespace {

constexpr int64_t kFloat = sizeof(float);
// Plans hold token counts in 64 bits, positions in 32.
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max() / 2;

// Sizes that the phases of a pass are made of, in bytes.
class Sizes {
 public:
  Sizes(const ModelConfig& config, const kernels::Backend& backend,
        const kernels::PackedBlocks& blocks, const std::vector<int32_t>& budgets)
      : config_(config),
        backend_(backend),
        element_(kernels::ElementBytes(backend.activation_type())),
        tokens_(blocks.tokens()),
        hidden_(config.hidden_size),
        q_width_(static_cast<int64_t>(config.num_heads) * config.HeadDim()),
        qkv_width_(q_width_ + 2 * static_cast<int64_t>(config.num_kv_heads) * config.HeadDim()),
        ffn_(config.intermediate_size) {
    const kernels::AttentionShape shape{config.num_heads, config.num_kv_heads, config.HeadDim(),
                                        qkv_width_,       qkv_width_,          q_width_};
    int64_t pairs = 0;
    for (int64_t b = 0; b < blocks.blocks(); ++b) {
      const int64_t chosen = budgets[blocks.block_sequence[b]] - 1;
      pairs += blocks.BlockTokens(b) * std::min(chosen, blocks.PastBlocks(b));
    }
    attention_forward_scratch_ = backend.AttentionForwardScratch(shape, blocks, pairs);
    attention_backward_scratch_ = backend.AttentionBackwardScratch(shape, blocks, pairs);
    const LoraConfig& lora = config.lora;
    const auto projection = [&](int64_t inputs, int64_t outputs,
                                std::initializer_list<Projection> parts, bool into_stream) {
      const auto adapters =
          std::count_if(parts.begin(), parts.end(), [&](Projection p) { return lora.Targets(p); });
      return ScratchOf(backend,
                       {tokens_, inputs, outputs, lora.rank, 1.0F,
                        Dropout{.rate = lora.enabled() ? lora.dropout : 0.0F}},
                       static_cast<int>(adapters), !lora.enabled(),
                       into_stream && config.dropout > 0);
    };
    using enum Projection;
    qkv_scratch_ = projection(hidden_, qkv_width_, {kQuery, kKey, kValue}, false);
    out_scratch_ = projection(q_width_, hidden_, {kOutput}, true);
    gate_up_scratch_ = projection(hidden_, 2 * ffn_, {kGate, kUp}, false);
    down_scratch_ = projection(ffn_, hidden_, {kDown}, true);
    lists_ = 2 * Taken(config.num_heads * pairs * int64_t{sizeof(int32_t)}) +
             Taken((tokens_ + 1) * int64_t{sizeof(int64_t)}) +
             Taken(config.num_heads * (blocks.blocks() + 1) * int64_t{sizeof(int64_t)});
  }

  int64_t Hidden() const { return Columns(hidden_); }
  int64_t Lists() const { return lists_; }
  int64_t Batch() const {
    return Floats(config_.HeadDim()) + Floats(1) + 2 * Taken(tokens_ * int64_t{sizeof(int32_t)}) +
           (config_.Drops() ? Taken(tokens_ * int64_t{sizeof(uint64_t)}) : 0);
  }
  // LayerActivations, in two parts: up to the attention's output, and the rest.
  int64_t AttentionPart() const {
    return Columns(hidden_) + Floats(1) + Columns(qkv_width_) + Columns(q_width_) +
           Floats(config_.num_heads);
  }
  int64_t MlpPart() const {
    return 2 * Columns(hidden_) + Floats(1) + Columns(2 * ffn_) + Columns(ffn_);
  }
  int64_t Layer() const { return AttentionPart() + Lists() + MlpPart(); }

  // Temporary memory of one layer's passes, above all of its activations. Forward, only the last
  // projection finds all of them there already; those of the MLP are freed when attention runs
  // backward.
  int64_t ForwardScratch() const {
    const int64_t early =
        std::max({attention_forward_scratch_, qkv_scratch_.forward, out_scratch_.forward});
    const int64_t middle = gate_up_scratch_.forward - Columns(ffn_);
    return std::max({int64_t{0}, early - MlpPart(), middle, down_scratch_.forward});
  }
  int64_t BackwardScratch() const {
    const int64_t mlp = Columns(ffn_) + Columns(2 * ffn_) + Columns(hidden_) +
                        std::max(down_scratch_.backward, gate_up_scratch_.backward);
    const int64_t attention = Columns(q_width_) + Columns(qkv_width_) - MlpPart() +
                              std::max({attention_backward_scratch_, out_scratch_.backward,
                                        Columns(hidden_) + qkv_scratch_.backward});
    return std::max(mlp, attention);
  }
  int64_t LossHead() const {
    const int64_t rows = LossHeadRows(config_, backend_, tokens_);
    return 2 * Columns(hidden_) + Floats(1) + Taken(rows * config_.vocab_size * element_) +
           (config_.lora.enabled() ? 0
                                   : backend_.MatmulScratch({.m = config_.vocab_size,
                                                             .n = hidden_,
                                                             .k = rows,
                                                             .transpose_a = true,
                                                             .accumulate = true}));
  }

 private:
  int64_t Taken(int64_t bytes) const { return backend_.AllocatedBytes(bytes); }
  // Of activations, and of statistics and tables.
  int64_t Columns(int64_t columns) const { return Taken(tokens_ * columns * element_); }
  int64_t Floats(int64_t columns) const { return Taken(tokens_ * columns * kFloat); }

  const ModelConfig& config_;
  const kernels::Backend& backend_;
  int64_t element_;  // bytes
  int64_t tokens_, hidden_, q_width_, qkv_width_, ffn_;
  int64_t attention_forward_scratch_ = 0;
  int64_t attention_backward_scratch_ = 0;
  ProjectionScratch qkv_scratch_, out_scratch_, gate_up_scratch_, down_scratch_;
  int64_t lists_ = 0;
};

}  // namespace

absl::StatusOr<MemoryEstimate> EstimateMemory(const ModelConfig& config,
                                              const kernels::Backend& backend,
                                              const std::vector<int64_t>& cu_seqlens,
                                              const std::vector<int32_t>& budgets) {
  SB_RETURN_IF_ERROR(config.Validate());
  SB_ASSIGN_OR_RETURN(const kernels::PackedBlocks blocks,
                      kernels::MakePackedBlocks(cu_seqlens, config.block_tokens));
  if (static_cast<int64_t>(budgets.size()) != blocks.sequences() ||
      std::any_of(budgets.begin(), budgets.end(), [](int32_t k) { return k < 1; })) {
    return absl::InvalidArgumentError("memory estimate: one budget >= 1 for every sequence");
  }
  const Sizes sizes(config, backend, blocks, budgets);
  const bool forgets = config.activation_checkpointing;
  const int64_t layers = config.num_layers;
  const int64_t kept = layers * (forgets ? sizes.Lists() : sizes.Layer());

  MemoryEstimate out;
  const ArenaSizes arenas = ParameterArenaSizes(config);
  out.state = backend.AllocatedBytes(arenas.values * kFloat) +
              3 * backend.AllocatedBytes(arenas.trainable * kFloat);
  if (backend.activation_type() != kernels::ElementType::kFloat32) {
    out.state +=
        backend.AllocatedBytes(arenas.values * kernels::ElementBytes(backend.activation_type()));
  }
  out.activations = sizes.Batch() + layers * sizes.Hidden() + kept;
  // Forward through the last layer: its output is there besides the inputs of all.
  const int64_t forward = sizes.Hidden() + sizes.ForwardScratch() +
                          (forgets ? sizes.AttentionPart() + sizes.MlpPart() : 0);
  // The loss head: output of the last layer and gradient.
  const int64_t head = 2 * sizes.Hidden() + sizes.LossHead();
  const int64_t backward = sizes.Hidden() + sizes.BackwardScratch() +
                           (forgets ? sizes.AttentionPart() + sizes.MlpPart() : 0);
  out.peak = out.state + out.activations + std::max({forward, head, backward});
  return out;
}

absl::StatusOr<int64_t> MostTokensWithin(const ModelConfig& config, const kernels::Backend& backend,
                                         int32_t max_budget, int64_t limit_bytes) {
  const auto peak = [&](int64_t blocks) -> absl::StatusOr<int64_t> {
    const int32_t budget = max_budget > 0 ? max_budget : std::numeric_limits<int32_t>::max();
    SB_ASSIGN_OR_RETURN(
        const MemoryEstimate estimate,
        EstimateMemory(config, backend, {0, blocks * config.block_tokens}, {budget}));
    return estimate.peak;
  };
  SB_RETURN_IF_ERROR(config.Validate());
  SB_ASSIGN_OR_RETURN(const int64_t least, peak(1));
  if (least > limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "a memory limit of %d MiB a rank is too small: the model's state and one block of %d "
        "tokens need %d MiB; raise the limit or take a smaller model",
        limit_bytes >> 20, config.block_tokens, (least >> 20) + 1));
  }
  int64_t fits = 1;
  int64_t too_many = 2;
  const int64_t most = kMostTokens / config.block_tokens;
  while (too_many <= most) {
    SB_ASSIGN_OR_RETURN(const int64_t bytes, peak(too_many));
    if (bytes > limit_bytes) break;
    fits = too_many;
    too_many *= 2;
  }
  too_many = std::min(too_many, most + 1);
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    SB_ASSIGN_OR_RETURN(const int64_t bytes, peak(middle));
    (bytes <= limit_bytes ? fits : too_many) = middle;
  }
  return fits * config.block_tokens;
}

}  // namespace sparsebalance::model
