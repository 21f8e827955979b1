#include "kernels/cpu/attention_pack.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace sparsebalance::kernels::cpu {

PackedOperand::PackedOperand(Kind kind, const AttentionShape& shape, const PackedBlocks& blocks)
    : kind_(kind), shape_(shape), blocks_(blocks), padded_dim_(RoundUpToLanes(shape.head_dim)) {
  padded_tokens_.reserve(blocks.blocks());
  offsets_.reserve(blocks.blocks());
  for (int64_t b = 0; b < blocks.blocks(); ++b) {
    padded_tokens_.push_back(RoundUpToLanes(blocks.BlockTokens(b)));
    offsets_.push_back(head_size_);
    head_size_ += kind == Kind::kRows ? blocks.BlockTokens(b) * padded_dim_
                                      : shape.head_dim * padded_tokens_[b];
  }
}

void PackedOperand::Pack(int threads, const float* x, float* storage) {
  storage_ = storage;
  const int dim = shape_.head_dim;
  ParallelFor(threads, shape_.num_kv_heads * blocks_.blocks(), [&](int64_t unit) {
    const int64_t head = unit / blocks_.blocks();
    const int64_t block = unit % blocks_.blocks();
    const int64_t tokens = blocks_.BlockTokens(block);
    const float* from = x + blocks_.block_begin[block] * shape_.kv_stride + head * dim;
    float* to = storage + head * head_size_ + offsets_[block];
    if (kind_ == Kind::kRows) {
      for (int64_t t = 0; t < tokens; ++t) {
        std::copy_n(from + t * shape_.kv_stride, dim, to + t * padded_dim_);
        std::fill(to + t * padded_dim_ + dim, to + (t + 1) * padded_dim_, 0.0F);
      }
      return;
    }
    const int64_t padded = padded_tokens_[block];
    for (int d = 0; d < dim; ++d) {
      for (int64_t t = 0; t < tokens; ++t) to[d * padded + t] = from[t * shape_.kv_stride + d];
      std::fill(to + d * padded + tokens, to + (d + 1) * padded, 0.0F);
    }
  });
}

}  // namespace sparsebalance::kernels::cpu
