#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/memory_pool.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kWantedUnits = 16;  // enough for the cores of one rank
constexpr int64_t kMaxGroups = 8;

// A run of key blocks of one sequence: with a KV head, the unit of work. It owns the gradients of
// its keys and values. The gradient of q is summed over groups: group 0 adds into q_grad, the
// others into buffers of their own, which are added in order afterwards. Groups follow from the
// shape of the micro-batch alone.
struct KeyGroup {
  int64_t sequence;
  int64_t first_block, last_block;  // global numbers, last exclusive
  int64_t first_token;              // of the queries it can meet
  int64_t partial_offset;           // rows into the partial buffer, -1 for group 0
};

std::vector<KeyGroup> MakeGroups(const AttentionShape& shape, const PackedBlocks& blocks,
                                 int64_t* partial_rows) {
  std::vector<KeyGroup> groups;
  *partial_rows = 0;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    const int64_t heads_tokens = shape.num_kv_heads * blocks.tokens();
    const int64_t wanted =
        (kWantedUnits * blocks.SequenceTokens(s) + heads_tokens - 1) / heads_tokens;
    const int64_t count =
        std::clamp<int64_t>(wanted, 1, std::min(kMaxGroups, blocks.SequenceBlocks(s)));
    const int64_t step = (blocks.SequenceBlocks(s) + count - 1) / count;
    for (int64_t b = blocks.first_block[s]; b < blocks.first_block[s + 1]; b += step) {
      KeyGroup g{s, b, std::min(b + step, blocks.first_block[s + 1]), blocks.block_begin[b], -1};
      if (b != blocks.first_block[s]) {
        g.partial_offset = *partial_rows;
        *partial_rows += blocks.cu_seqlens[s + 1] - g.first_token;
      }
      groups.push_back(g);
    }
  }
  return groups;
}

struct Operands {
  const PackedOperand& keys_transposed;
  const PackedOperand& keys;
  const PackedOperand& values_transposed;
};

class BackwardPass {
 public:
  BackwardPass(const AttentionShape& shape, const PackedBlocks& blocks, const ListView& lists,
               const AttentionBackwardArgs& args, const Operands& operands, const float* delta,
               float* partials)
      : shape_(shape),
        blocks_(blocks),
        lists_(lists),
        args_(args),
        operands_(operands),
        delta_(delta),
        partials_(partials),
        dim_(RoundUpToLanes(shape.head_dim)),
        block_columns_(RoundUpToLanes(blocks.block_tokens)),
        tile_rows_(TileRows(blocks.block_tokens)),
        rows_(std::max(tile_rows_, kStripRows)),
        score_scale_(ScoreScale(shape.head_dim)),
        softmax_scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))) {}

  int64_t ScratchSize() const {
    return rows_ * (3 * dim_ + 2 * block_columns_) + 2 * block_columns_ * dim_;
  }

  void Run(int64_t kv_head, const KeyGroup& group, float* scratch) const {
    Work w{};
    w.kv_head = kv_head;
    w.group = &group;
    w.q = scratch;
    w.out_grad = w.q + rows_ * dim_;
    w.q_grad = w.out_grad + rows_ * dim_;
    w.scores = w.q_grad + rows_ * dim_;
    w.grads = w.scores + rows_ * block_columns_;
    w.k_grad = w.grads + rows_ * block_columns_;
    w.v_grad = w.k_grad + block_columns_ * dim_;

    const int64_t heads = shape_.num_heads / shape_.num_kv_heads;
    for (int64_t h = kv_head * heads; h < (kv_head + 1) * heads; ++h) ClearQueryGrad(w, h);
    for (int64_t b = group.first_block; b < group.last_block; ++b) {
      std::fill_n(w.k_grad, blocks_.BlockTokens(b) * dim_, 0.0F);
      std::fill_n(w.v_grad, blocks_.BlockTokens(b) * dim_, 0.0F);
      for (w.head = kv_head * heads; w.head < (kv_head + 1) * heads; ++w.head) {
        OwnBlock(w, b);
        SelectedBlock(w, b);
      }
      WriteKeyGrads(w, b);
    }
  }

  // q_grad row of `token` and `head` in what the group sums into.
  float* QueryGrad(const KeyGroup& group, int64_t head, int64_t token) const {
    if (group.partial_offset < 0) {
      return args_.q_grad + token * shape_.q_stride + head * shape_.head_dim;
    }
    const int64_t row = group.partial_offset + token - group.first_token;
    return partials_ + (row * shape_.num_heads + head) * shape_.head_dim;
  }

 private:
  struct Work {
    int64_t head, kv_head;
    const KeyGroup* group;
    float* q;         // [rows, dim], times the score scale
    float* out_grad;  // [rows, dim]
    float* q_grad;    // [rows, dim]
    float* scores;    // [rows, block columns]
    float* grads;     // [rows, block columns]
    float* k_grad;    // [block tokens, dim]
    float* v_grad;    // [block tokens, dim]
  };

  void ClearQueryGrad(const Work& w, int64_t head) const {
    const int64_t end = blocks_.cu_seqlens[w.group->sequence + 1];
    for (int64_t t = w.group->first_token; t < end; ++t) {
      std::fill_n(QueryGrad(*w.group, head, t), shape_.head_dim, 0.0F);
    }
  }

  void OwnBlock(const Work& w, int64_t block) const {
    const int64_t first = blocks_.block_begin[block];
    const int64_t tokens = blocks_.BlockTokens(block);
    for (int64_t r0 = 0; r0 < tokens; r0 += kStripRows) {
      const int64_t rows = std::min(kStripRows, tokens - r0);
      for (int64_t i = 0; i < rows; ++i) Gather(w, first + r0 + i, i);
      Tile(w, block, rows, r0 + rows, r0, [&](int64_t i) { return first + r0 + i; });
    }
  }

  void SelectedBlock(const Work& w, int64_t block) const {
    const int64_t* offsets = lists_.block_offsets + w.head * (blocks_.blocks() + 1);
    const int32_t* queries = lists_.block_queries + w.head * lists_.pairs;
    for (int64_t at = offsets[block]; at < offsets[block + 1]; at += tile_rows_) {
      const int64_t rows = std::min(tile_rows_, offsets[block + 1] - at);
      for (int64_t i = 0; i < rows; ++i) Gather(w, queries[at + i], i);
      Tile(w, block, rows, blocks_.block_tokens, blocks_.block_tokens,
           [&](int64_t i) { return static_cast<int64_t>(queries[at + i]); });
    }
  }

  // The gathered rows against the first `keys` keys of `block`. Row i sees min(keys,
  // causal_first + i + 1) of them; token_of(i) is its token.
  template <typename TokenOf>
  void Tile(const Work& w, int64_t block, int64_t rows, int64_t keys, int64_t causal_first,
            TokenOf&& token_of) const {
    const int64_t columns = RoundUpToLanes(keys);
    const int64_t tokens = blocks_.tokens();
    TileProduct(rows, columns, shape_.head_dim, {w.q, dim_, 1},
                operands_.keys_transposed.Block(w.kv_head, block),
                operands_.keys_transposed.Stride(block), w.scores, columns, false);
    TileProduct(rows, columns, shape_.head_dim, {w.out_grad, dim_, 1},
                operands_.values_transposed.Block(w.kv_head, block),
                operands_.values_transposed.Stride(block), w.grads, columns, false);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t t = token_of(i);
      MaskTail(w.scores + i * columns, std::min(keys, causal_first + i + 1), columns);
      SoftmaxBackwardRow(w.scores + i * columns, w.grads + i * columns, columns,
                         args_.lse[w.head * tokens + t] * kLog2E, delta_[w.head * tokens + t]);
    }
    TileProduct(keys, dim_, rows, {w.scores, 1, columns}, w.out_grad, dim_, w.v_grad, dim_, true);
    TileProduct(keys, dim_, rows, {w.grads, 1, columns}, w.q, dim_, w.k_grad, dim_, true);
    TileProduct(rows, dim_, keys, {w.grads, columns, 1}, operands_.keys.Block(w.kv_head, block),
                dim_, w.q_grad, dim_, false);
    for (int64_t i = 0; i < rows; ++i) {
      float* to = QueryGrad(*w.group, w.head, token_of(i));
      const float* from = w.q_grad + i * dim_;
      for (int d = 0; d < shape_.head_dim; ++d) to[d] += softmax_scale_ * from[d];
    }
  }

  void Gather(const Work& w, int64_t token, int64_t row) const {
    CopyRow(args_.q + token * shape_.q_stride + w.head * shape_.head_dim, shape_.head_dim,
            score_scale_, dim_, w.q + row * dim_);
    CopyRow(args_.out_grad + token * shape_.out_stride + w.head * shape_.head_dim, shape_.head_dim,
            1.0F, dim_, w.out_grad + row * dim_);
  }

  void WriteKeyGrads(const Work& w, int64_t block) const {
    // w.q carried 1/sqrt(d) and log2(e); only the first belongs to the gradient.
    for (int64_t t = 0; t < blocks_.BlockTokens(block); ++t) {
      const int64_t at =
          (blocks_.block_begin[block] + t) * shape_.kv_stride + w.kv_head * shape_.head_dim;
      CopyRow(w.k_grad + t * dim_, shape_.head_dim, kLn2, shape_.head_dim, args_.k_grad + at);
      CopyRow(w.v_grad + t * dim_, shape_.head_dim, 1.0F, shape_.head_dim, args_.v_grad + at);
    }
  }

  const AttentionShape& shape_;
  const PackedBlocks& blocks_;
  const ListView& lists_;
  const AttentionBackwardArgs& args_;
  const Operands& operands_;
  const float* delta_;
  float* partials_;
  int64_t dim_;
  int64_t block_columns_;
  int64_t tile_rows_;
  int64_t rows_;
  float score_scale_;
  float softmax_scale_;
};

// delta[h, t] = out_grad . out: the part of the softmax's gradient that all keys share.
void Deltas(int threads, const AttentionShape& shape, int64_t tokens,
            const AttentionBackwardArgs& args, float* delta) {
  ParallelRanges(threads, tokens, 256, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int h = 0; h < shape.num_heads; ++h) {
        const int64_t at = t * shape.out_stride + static_cast<int64_t>(h) * shape.head_dim;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int d = 0; d < shape.head_dim; ++d) sum += args.out[at + d] * args.out_grad[at + d];
        delta[h * tokens + t] = sum;
      }
    }
  });
}

}  // namespace

int64_t AttentionBackwardScratch(const AttentionShape& shape, const PackedBlocks& blocks) {
  const PackedOperand transposed(PackedOperand::Kind::kTransposed, shape, blocks);
  const PackedOperand rows(PackedOperand::Kind::kRows, shape, blocks);
  int64_t partial_rows = 0;
  MakeGroups(shape, blocks, &partial_rows);
  const auto taken = [](int64_t floats) {
    return MemoryPool::TakenBytes(floats * static_cast<int64_t>(sizeof(float)));
  };
  return 2 * taken(transposed.size()) + taken(rows.size()) +
         taken(shape.num_heads * blocks.tokens()) +
         taken(partial_rows * shape.num_heads * shape.head_dim);
}

absl::Status AttentionBackward(Backend* backend, int threads, const AttentionShape& shape,
                               const PackedBlocks& blocks, const ListView& lists,
                               const AttentionBackwardArgs& args) {
  PackedOperand keys_transposed(PackedOperand::Kind::kTransposed, shape, blocks);
  PackedOperand keys(PackedOperand::Kind::kRows, shape, blocks);
  PackedOperand values_transposed(PackedOperand::Kind::kTransposed, shape, blocks);
  int64_t partial_rows = 0;
  const std::vector<KeyGroup> groups = MakeGroups(shape, blocks, &partial_rows);
  const int64_t partial_width = static_cast<int64_t>(shape.num_heads) * shape.head_dim;

  SB_ASSIGN_OR_RETURN(DeviceArray<float> storage_kt,
                      backend->Allocate<float>(keys_transposed.size()));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> storage_k, backend->Allocate<float>(keys.size()));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> storage_vt,
                      backend->Allocate<float>(values_transposed.size()));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> delta,
                      backend->Allocate<float>(shape.num_heads * blocks.tokens()));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> partials,
                      backend->Allocate<float>(partial_rows * partial_width));
  keys_transposed.Pack(threads, args.k, DeviceAccess::Data(storage_kt.span()));
  keys.Pack(threads, args.k, DeviceAccess::Data(storage_k.span()));
  values_transposed.Pack(threads, args.v, DeviceAccess::Data(storage_vt.span()));
  Deltas(threads, shape, blocks.tokens(), args, DeviceAccess::Data(delta.span()));

  const Operands operands{keys_transposed, keys, values_transposed};
  const BackwardPass pass(shape, blocks, lists, args, operands, DeviceAccess::Data(delta.span()),
                          DeviceAccess::Data(partials.span()));
  const int64_t scratch_size = RoundUpToLanes(pass.ScratchSize());
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch, backend->Allocate<float>(threads * scratch_size));
  ParallelFor(threads, shape.num_kv_heads * static_cast<int64_t>(groups.size()), [&](int64_t unit) {
    pass.Run(unit % shape.num_kv_heads, groups[unit / shape.num_kv_heads],
             DeviceAccess::Data(scratch.span()) + ThreadIndex() * scratch_size);
  });

  // Groups of one sequence are neighbours in the list, in ascending order.
  ParallelRanges(threads, blocks.tokens(), 256, [&](int64_t begin, int64_t end) {
    for (const KeyGroup& group : groups) {
      if (group.partial_offset < 0) continue;
      const int64_t last = std::min(end, blocks.cu_seqlens[group.sequence + 1]);
      for (int64_t t = std::max(begin, group.first_token); t < last; ++t) {
        const float* from = pass.QueryGrad(group, 0, t);
        float* to = args.q_grad + t * shape.q_stride;
        for (int64_t i = 0; i < partial_width; ++i) to[i] += from[i];
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels::cpu
