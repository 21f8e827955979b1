#include "kernels/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/block_index.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kScoreRows = 48;  // queries whose scores are made together

// The mean keys of each (KV head, sequence), transposed to right operands of TileProduct.
class TransposedMeans {
 public:
  TransposedMeans(const AttentionShape& shape, const PackedBlocks& blocks)
      : dim_(shape.head_dim), blocks_(blocks) {
    for (int64_t s = 0; s < blocks.sequences(); ++s) {
      offsets_.push_back(head_size_);
      head_size_ += dim_ * Columns(s);
    }
  }
  int64_t head_size() const { return head_size_; }
  int64_t Columns(int64_t sequence) const {
    return RoundUpToLanes(blocks_.SequenceBlocks(sequence));
  }
  const float* At(int kv_head, int64_t sequence) const {
    return storage_ + kv_head * head_size_ + offsets_[sequence];
  }
  void Fill(int threads, int num_kv_heads, const float* means, float* storage) {
    storage_ = storage;
    ParallelFor(threads, num_kv_heads * blocks_.sequences(), [&](int64_t unit) {
      const int64_t head = unit / blocks_.sequences();
      const int64_t s = unit % blocks_.sequences();
      const float* from = means + (head * blocks_.blocks() + blocks_.first_block[s]) * dim_;
      float* to = storage + head * head_size_ + offsets_[s];
      const int64_t count = blocks_.SequenceBlocks(s);
      for (int64_t d = 0; d < dim_; ++d) {
        for (int64_t b = 0; b < Columns(s); ++b) {
          to[d * Columns(s) + b] = b < count ? from[b * dim_ + d] : 0.0F;
        }
      }
    });
  }

 private:
  int64_t dim_;
  const PackedBlocks& blocks_;
  std::vector<int64_t> offsets_;
  int64_t head_size_ = 0;
  const float* storage_ = nullptr;
};

int64_t MostBlocks(const PackedBlocks& blocks) {
  int64_t most = 0;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    most = std::max(most, blocks.SequenceBlocks(s));
  }
  return most;
}

}  // namespace

void BlockMeans(int threads, const AttentionShape& shape, const PackedBlocks& blocks,
                const float* k, float* means) {
  ParallelFor(threads, shape.num_kv_heads * blocks.blocks(), [&](int64_t unit) {
    const int64_t head = unit / blocks.blocks();
    const int64_t block = unit % blocks.blocks();
    float* mean = means + unit * shape.head_dim;
    std::fill_n(mean, shape.head_dim, 0.0F);
    for (int64_t t = blocks.block_begin[block]; t < blocks.block_begin[block + 1]; ++t) {
      const float* key = k + t * shape.kv_stride + head * shape.head_dim;
      for (int d = 0; d < shape.head_dim; ++d) mean[d] += key[d];
    }
    const float factor = 1.0F / static_cast<float>(blocks.BlockTokens(block));
    for (int d = 0; d < shape.head_dim; ++d) mean[d] *= factor;
  });
}

void TopIndices(const float* scores, int64_t count, int64_t wanted, int32_t* keys,
                int32_t* indices) {
  if (wanted >= count) {
    for (int64_t i = 0; i < count; ++i) indices[i] = static_cast<int32_t>(i);
    return;
  }
  if (wanted == 0) return;
  int32_t low = std::numeric_limits<int32_t>::max();
  int32_t high = std::numeric_limits<int32_t>::min();
#pragma omp simd reduction(min : low) reduction(max : high)
  for (int64_t i = 0; i < count; ++i) {
    keys[i] = ScoreKey(scores[i]);
    low = std::min(low, keys[i]);
    high = std::max(high, keys[i]);
  }
  // Bisect for the largest threshold that at least `wanted` keys reach: its cost does not depend on
  // `wanted` and the counting is one vector operation per kLanes keys.
  while (low < high) {
    const int32_t middle = static_cast<int32_t>((static_cast<int64_t>(low) + high + 1) >> 1);
    int32_t reached = 0;
#pragma omp simd reduction(+ : reached)
    for (int64_t i = 0; i < count; ++i) reached += keys[i] >= middle ? 1 : 0;
    if (reached >= wanted) {
      low = middle;
      if (reached == wanted) break;
    } else {
      high = middle - 1;
    }
  }
  int64_t above = 0;
  for (int64_t i = 0; i < count; ++i) above += keys[i] > low ? 1 : 0;
  int64_t ties = wanted - above;  // of those at the threshold, the lowest indices
  int64_t filled = 0;
  for (int64_t i = 0; i < count && filled < wanted; ++i) {
    if (keys[i] < low) continue;
    if (keys[i] == low && ties-- <= 0) continue;
    indices[filled++] = static_cast<int32_t>(i);
  }
}

absl::Status SelectBlocks(Backend* backend, int threads, const AttentionShape& shape,
                          const PackedBlocks& blocks, const float* q, const float* means,
                          const int64_t* query_offsets, int64_t pairs, int32_t* query_blocks) {
  TransposedMeans transposed(shape, blocks);
  const int64_t columns = RoundUpToLanes(MostBlocks(blocks));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> storage,
                      backend->Allocate<float>(shape.num_kv_heads * transposed.head_size()));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> all_scores,
                      backend->Allocate<float>(threads * kScoreRows * columns));
  SB_ASSIGN_OR_RETURN(DeviceArray<int32_t> all_keys, backend->Allocate<int32_t>(threads * columns));
  transposed.Fill(threads, shape.num_kv_heads, means, DeviceAccess::Data(storage.span()));

  ParallelFor(threads, shape.num_heads * blocks.blocks(), [&](int64_t unit) {
    const auto head = static_cast<int>(unit % shape.num_heads);
    const int64_t block = unit / shape.num_heads;
    const int64_t past = blocks.PastBlocks(block);
    const int64_t first = blocks.block_begin[block];
    const int64_t wanted = query_offsets[first + 1] - query_offsets[first];
    if (wanted == 0) return;
    const int32_t sequence = blocks.block_sequence[block];
    const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
    float* scores = DeviceAccess::Data(all_scores.span()) + ThreadIndex() * kScoreRows * columns;
    int32_t* keys = DeviceAccess::Data(all_keys.span()) + ThreadIndex() * columns;
    const int64_t end = blocks.block_begin[block + 1];
    for (int64_t t0 = first; t0 < end; t0 += kScoreRows) {
      const int64_t rows = std::min(kScoreRows, end - t0);
      if (wanted < past) {
        TileProduct(rows, RoundUpToLanes(past), shape.head_dim,
                    {q + t0 * shape.q_stride + head * shape.head_dim, shape.q_stride, 1},
                    transposed.At(kv_head, sequence), transposed.Columns(sequence), scores, columns,
                    false);
      }
      for (int64_t i = 0; i < rows; ++i) {
        int32_t* to = query_blocks + head * pairs + query_offsets[t0 + i];
        TopIndices(scores + i * columns, past, wanted, keys, to);
        const auto offset = static_cast<int32_t>(blocks.first_block[sequence]);
        for (int64_t j = 0; j < wanted; ++j) to[j] += offset;
      }
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<double>>> CoverageCurves(Backend* backend, int threads,
                                                                const AttentionShape& shape,
                                                                const PackedBlocks& blocks,
                                                                const float* q, const float* means,
                                                                int sample_stride) {
  TransposedMeans transposed(shape, blocks);
  const int64_t columns = RoundUpToLanes(MostBlocks(blocks));
  const int64_t grid_size = static_cast<int64_t>(CoverageGrid(MostBlocks(blocks)).size());
  const int64_t units = blocks.blocks() * shape.num_heads;
  SB_ASSIGN_OR_RETURN(DeviceArray<float> storage,
                      backend->Allocate<float>(shape.num_kv_heads * transposed.head_size()));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> all_scores, backend->Allocate<float>(threads * columns));
  SB_ASSIGN_OR_RETURN(DeviceArray<double> all_sums, backend->Allocate<double>(units * grid_size));
  SB_ASSIGN_OR_RETURN(DeviceArray<int64_t> all_counts, backend->Allocate<int64_t>(units));
  double* sums = DeviceAccess::Data(all_sums.span());
  int64_t* counts = DeviceAccess::Data(all_counts.span());
  std::fill_n(sums, units * grid_size, 0.0);
  transposed.Fill(threads, shape.num_kv_heads, means, DeviceAccess::Data(storage.span()));

  std::vector<std::vector<int64_t>> grids;
  grids.reserve(blocks.sequences());
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    grids.push_back(CoverageGrid(blocks.SequenceBlocks(s)));
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));

  ParallelFor(threads, units, [&](int64_t unit) {
    const auto head = static_cast<int>(unit % shape.num_heads);
    const int64_t block = unit / shape.num_heads;
    const int64_t past = blocks.PastBlocks(block);
    counts[unit] = 0;
    if (past == 0) return;
    const int32_t sequence = blocks.block_sequence[block];
    const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const std::vector<int64_t>& grid = grids[sequence];
    float* scores = DeviceAccess::Data(all_scores.span()) + ThreadIndex() * columns;
    double* sum = sums + unit * grid_size;
    const int64_t first = blocks.block_begin[block];
    const int64_t last = blocks.block_begin[block + 1] - 1;
    const int64_t to_sample = (blocks.cu_seqlens[sequence + 1] - 1 - last) % sample_stride;
    for (int64_t t = to_sample == 0 ? last : last - (sample_stride - to_sample); t >= first;
         t -= sample_stride) {
      TileProduct(1, RoundUpToLanes(past), shape.head_dim,
                  {q + t * shape.q_stride + head * shape.head_dim, shape.q_stride, 1},
                  transposed.At(kv_head, sequence), transposed.Columns(sequence), scores, columns,
                  false);
      // NaN would break the order that std::sort relies on; a diverged model is reported elsewhere.
      for (int64_t i = 0; i < past; ++i) {
        if (std::isnan(scores[i])) scores[i] = std::numeric_limits<float>::lowest();
      }
      std::sort(scores, scores + past, std::greater<>());
      double total = 0;
      const double max = scores[0];
      for (int64_t i = 0; i < past; ++i) total += std::exp((scores[i] - max) * scale);
      double mass = 0;
      int64_t taken = 0;
      for (size_t g = 0; g < grid.size(); ++g) {
        for (; taken < std::min(grid[g] - 1, past); ++taken) {
          mass += std::exp((scores[taken] - max) * scale);
        }
        sum[g] += taken == past ? 1.0 : mass / total;
      }
      ++counts[unit];
    }
  });

  std::vector<std::vector<double>> curves;
  curves.reserve(blocks.sequences());
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    const int64_t n = blocks.SequenceBlocks(s);
    std::vector<double> curve(grids[s].size(), 0.0);
    double count = 0;
    for (int64_t unit = blocks.first_block[s] * shape.num_heads;
         unit < blocks.first_block[s + 1] * shape.num_heads; ++unit) {
      for (size_t g = 0; g < curve.size(); ++g) curve[g] += sums[unit * grid_size + g];
      count += static_cast<double>(counts[unit]);
    }
    // With one block there is no past to cover: all of it is.
    for (double& c : curve) c = n == 1 ? 1.0 : std::min(1.0, c / count);
    curves.push_back(std::move(curve));
  }
  return curves;
}

}  // namespace sparsebalance::kernels::cpu
