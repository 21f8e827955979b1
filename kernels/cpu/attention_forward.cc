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

// A run of query blocks of one sequence: the unit of work, for each head. Its accumulators stay in
// the second-level cache while the key blocks pass by.
struct QueryChunk {
  int64_t first_block, last_block;  // global numbers, last exclusive
};

std::vector<QueryChunk> MakeChunks(const PackedBlocks& blocks, int64_t padded_dim) {
  const int64_t rows = std::clamp<int64_t>(65536 / padded_dim, 256, 2048);
  const int64_t step = std::max<int64_t>(1, rows / blocks.block_tokens);
  std::vector<QueryChunk> chunks;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    for (int64_t b = blocks.first_block[s]; b < blocks.first_block[s + 1]; b += step) {
      chunks.push_back({b, std::min(b + step, blocks.first_block[s + 1])});
    }
  }
  return chunks;
}

class ForwardPass {
 public:
  ForwardPass(const AttentionShape& shape, const PackedBlocks& blocks, const ListView& lists,
              const AttentionForwardArgs& args, const PackedOperand& keys,
              const PackedOperand& values)
      : shape_(shape),
        blocks_(blocks),
        lists_(lists),
        args_(args),
        keys_(keys),
        values_(values),
        dim_(RoundUpToLanes(shape.head_dim)),
        block_columns_(RoundUpToLanes(blocks.block_tokens)),
        tile_rows_(TileRows(blocks.block_tokens)),
        score_scale_(ScoreScale(shape.head_dim)) {}

  int64_t ScratchSize(int64_t chunk_rows) const {
    const int64_t rows = std::max(tile_rows_, kStripRows);
    return chunk_rows * (dim_ + 2) + rows * (2 * dim_ + block_columns_);
  }

  void Run(int64_t head, const QueryChunk& chunk, float* scratch) const {
    const int64_t begin = blocks_.block_begin[chunk.first_block];
    const int64_t end = blocks_.block_begin[chunk.last_block];
    const int64_t rows = std::max(tile_rows_, kStripRows);
    Work w{};
    w.head = head;
    w.kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
    w.begin = begin;
    w.sums = scratch;
    w.max = w.sums + (end - begin) * dim_;
    w.total = w.max + (end - begin);
    w.q = w.total + (end - begin);
    w.product = w.q + rows * dim_;
    w.scores = w.product + rows * dim_;

    for (int64_t b = chunk.first_block; b < chunk.last_block; ++b) OwnBlock(w, b);
    const int64_t first = blocks_.first_block[blocks_.block_sequence[chunk.first_block]];
    for (int64_t b = first; b + 1 < chunk.last_block; ++b) SelectedBlock(w, b, begin, end);
    Finish(w, end);
  }

 private:
  struct Work {
    int64_t head, kv_head;
    int64_t begin;  // first token of the chunk
    float* sums;    // [chunk rows, dim]: not yet divided by total
    float* max;     // [chunk rows], base-2
    float* total;   // [chunk rows]
    float* q;       // [tile rows, dim]
    float* product;
    float* scores;  // [tile rows, block columns]
  };

  void OwnBlock(const Work& w, int64_t block) const {
    const int64_t first = blocks_.block_begin[block];
    const int64_t tokens = blocks_.BlockTokens(block);
    const float* keys = keys_.Block(w.kv_head, block);
    const float* values = values_.Block(w.kv_head, block);
    for (int64_t r0 = 0; r0 < tokens; r0 += kStripRows) {
      const int64_t rows = std::min(kStripRows, tokens - r0);
      const int64_t columns = RoundUpToLanes(r0 + rows);
      for (int64_t i = 0; i < rows; ++i) GatherQuery(w, first + r0 + i, i);
      TileProduct(rows, columns, shape_.head_dim, {w.q, dim_, 1}, keys, keys_.Stride(block),
                  w.scores, columns, false);
      const int64_t row = first + r0 - w.begin;
      for (int64_t i = 0; i < rows; ++i) {
        float* scores = w.scores + i * columns;
        MaskTail(scores, r0 + i + 1, columns);
        w.max[row + i] = kMinusInfinity;
        w.total[row + i] = 0;
        OnlineSoftmaxRow(scores, columns, &w.max[row + i], &w.total[row + i]);
      }
      TileProduct(rows, dim_, r0 + rows, {w.scores, columns, 1}, values, dim_, w.sums + row * dim_,
                  dim_, false);
    }
  }

  // Queries of the chunk that selected `block`: it is a full one, only a sequence's last can be
  // partial and that is nobody's past.
  void SelectedBlock(const Work& w, int64_t block, int64_t begin, int64_t end) const {
    const int64_t* offsets = lists_.block_offsets + w.head * (blocks_.blocks() + 1);
    const int32_t* queries = lists_.block_queries + w.head * lists_.pairs;
    const int32_t* from =
        std::lower_bound(queries + offsets[block], queries + offsets[block + 1], begin);
    const int32_t* to = std::lower_bound(from, queries + offsets[block + 1], end);
    const int64_t tokens = blocks_.block_tokens;
    for (; from < to; from += tile_rows_) {
      const int64_t rows = std::min<int64_t>(tile_rows_, to - from);
      for (int64_t i = 0; i < rows; ++i) GatherQuery(w, from[i], i);
      TileProduct(rows, block_columns_, shape_.head_dim, {w.q, dim_, 1},
                  keys_.Block(w.kv_head, block), keys_.Stride(block), w.scores, block_columns_,
                  false);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = from[i] - w.begin;
        float* scores = w.scores + i * block_columns_;
        MaskTail(scores, tokens, block_columns_);
        const float keep = OnlineSoftmaxRow(scores, block_columns_, &w.max[row], &w.total[row]);
        if (keep == 1.0F) continue;
        float* sums = w.sums + row * dim_;
        for (int64_t d = 0; d < dim_; ++d) sums[d] *= keep;
      }
      TileProduct(rows, dim_, tokens, {w.scores, block_columns_, 1},
                  values_.Block(w.kv_head, block), dim_, w.product, dim_, false);
      for (int64_t i = 0; i < rows; ++i) {
        float* sums = w.sums + (from[i] - w.begin) * dim_;
        const float* product = w.product + i * dim_;
        for (int64_t d = 0; d < dim_; ++d) sums[d] += product[d];
      }
    }
  }

  void Finish(const Work& w, int64_t end) const {
    for (int64_t t = w.begin; t < end; ++t) {
      const int64_t row = t - w.begin;
      CopyRow(w.sums + row * dim_, shape_.head_dim, 1.0F / w.total[row], shape_.head_dim,
              args_.out + t * shape_.out_stride + w.head * shape_.head_dim);
      args_.lse[w.head * blocks_.tokens() + t] = (w.max[row] + std::log2(w.total[row])) * kLn2;
    }
  }

  void GatherQuery(const Work& w, int64_t token, int64_t row) const {
    CopyRow(args_.q + token * shape_.q_stride + w.head * shape_.head_dim, shape_.head_dim,
            score_scale_, dim_, w.q + row * dim_);
  }

  const AttentionShape& shape_;
  const PackedBlocks& blocks_;
  const ListView& lists_;
  const AttentionForwardArgs& args_;
  const PackedOperand& keys_;
  const PackedOperand& values_;
  int64_t dim_;
  int64_t block_columns_;
  int64_t tile_rows_;
  float score_scale_;
};

}  // namespace

int64_t AttentionForwardScratch(const AttentionShape& shape, const PackedBlocks& blocks) {
  const PackedOperand keys(PackedOperand::Kind::kTransposed, shape, blocks);
  const PackedOperand values(PackedOperand::Kind::kRows, shape, blocks);
  constexpr int64_t kFloat = sizeof(float);
  return MemoryPool::TakenBytes(keys.size() * kFloat) +
         MemoryPool::TakenBytes(values.size() * kFloat);
}

absl::Status AttentionForward(Backend* backend, int threads, const AttentionShape& shape,
                              const PackedBlocks& blocks, const ListView& lists,
                              const AttentionForwardArgs& args) {
  PackedOperand keys(PackedOperand::Kind::kTransposed, shape, blocks);
  PackedOperand values(PackedOperand::Kind::kRows, shape, blocks);
  SB_ASSIGN_OR_RETURN(DeviceArray<float> key_storage, backend->Allocate<float>(keys.size()));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> value_storage, backend->Allocate<float>(values.size()));
  keys.Pack(threads, args.k, DeviceAccess::Data(key_storage.span()));
  values.Pack(threads, args.v, DeviceAccess::Data(value_storage.span()));

  const std::vector<QueryChunk> chunks = MakeChunks(blocks, RoundUpToLanes(shape.head_dim));
  int64_t most_rows = 0;
  for (const QueryChunk& c : chunks) {
    most_rows =
        std::max(most_rows, blocks.block_begin[c.last_block] - blocks.block_begin[c.first_block]);
  }
  const ForwardPass pass(shape, blocks, lists, args, keys, values);
  const int64_t scratch_size = RoundUpToLanes(pass.ScratchSize(most_rows));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch, backend->Allocate<float>(threads * scratch_size));
  ParallelFor(threads, shape.num_heads * static_cast<int64_t>(chunks.size()), [&](int64_t unit) {
    // Late chunks see the most key blocks: the heaviest first.
    const auto count = static_cast<int64_t>(chunks.size());
    const int64_t chunk = count - 1 - unit / shape.num_heads;
    pass.Run(unit % shape.num_heads, chunks[chunk],
             DeviceAccess::Data(scratch.span()) + ThreadIndex() * scratch_size);
  });
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels::cpu
