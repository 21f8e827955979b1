#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// Copies of keys or values of every (KV head, block), laid out as right operands of TileProduct:
// rows of one block together, and the columns of a product padded with zeros to whole vectors.
class PackedOperand {
 public:
  enum class Kind {
    kRows,        // [block's tokens, head_dim padded]
    kTransposed,  // [head_dim, block's tokens padded]
  };

  PackedOperand(Kind kind, const AttentionShape& shape, const PackedBlocks& blocks);

  int64_t size() const { return shape_.num_kv_heads * head_size_; }
  // Fills `storage` [size()] from x, strided as keys and values are.
  void Pack(int threads, const float* x, float* storage);

  const float* Block(int64_t kv_head, int64_t block) const {
    return storage_ + kv_head * head_size_ + offsets_[block];
  }
  // Elements between two rows of Block(..., block).
  int64_t Stride(int64_t block) const {
    return kind_ == Kind::kRows ? padded_dim_ : padded_tokens_[block];
  }

 private:
  Kind kind_;
  AttentionShape shape_;
  const PackedBlocks& blocks_;
  int64_t padded_dim_;
  std::vector<int64_t> padded_tokens_;  // [blocks]
  std::vector<int64_t> offsets_;        // [blocks]
  int64_t head_size_ = 0;
  const float* storage_ = nullptr;
};

}  // namespace sparsebalance::kernels::cpu
