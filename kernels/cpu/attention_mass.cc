#include "kernels/cpu/attention_mass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parallel.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cpu {
namespace {

// Up to `queries` tokens of a sequence that have a past block, evenly spread, the last one among
// them.
std::vector<int64_t> SampledQueries(const PackedBlocks& blocks, int64_t sequence, int queries) {
  std::vector<int64_t> sample;
  if (blocks.SequenceBlocks(sequence) < 2) return sample;
  const int64_t first = blocks.block_begin[blocks.first_block[sequence] + 1];
  const int64_t count = blocks.cu_seqlens[sequence + 1] - first;
  const int64_t taken = std::min<int64_t>(queries, count);
  sample.reserve(taken);
  for (int64_t i = 1; i <= taken; ++i) sample.push_back(first + i * count / taken - 1);
  return sample;
}

}  // namespace

absl::StatusOr<std::vector<double>> AttentionMass(Backend* backend, int threads,
                                                  const AttentionShape& shape,
                                                  const PackedBlocks& blocks, const float* q,
                                                  const float* k, const int64_t* query_offsets,
                                                  int64_t pairs, const int32_t* query_blocks,
                                                  int queries) {
  struct Unit {
    int64_t sequence, token, block;
  };
  std::vector<Unit> units;
  int64_t longest = 0;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    longest = std::max(longest, blocks.SequenceTokens(s));
    for (const int64_t t : SampledQueries(blocks, s, queries)) {
      const int64_t within = t - blocks.cu_seqlens[s];
      units.push_back({s, t, blocks.first_block[s] + within / blocks.block_tokens});
    }
  }
  const auto num_units = static_cast<int64_t>(units.size());
  SB_ASSIGN_OR_RETURN(DeviceArray<double> shares,
                      backend->Allocate<double>(num_units * shape.num_heads));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> scratch, backend->Allocate<float>(threads * longest));
  double* share = DeviceAccess::Data(shares.span());
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));

  ParallelFor(threads, num_units * shape.num_heads, [&](int64_t index) {
    const Unit& unit = units[index / shape.num_heads];
    const int64_t head = index % shape.num_heads;
    const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const int64_t begin = blocks.cu_seqlens[unit.sequence];
    const int64_t end = blocks.block_begin[unit.block];
    const float* query = q + unit.token * shape.q_stride + head * shape.head_dim;
    float* scores = DeviceAccess::Data(scratch.span()) + ThreadIndex() * longest;
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t t = begin; t < end; ++t) {
      const float* key = k + t * shape.kv_stride + kv_head * shape.head_dim;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int d = 0; d < shape.head_dim; ++d) dot += query[d] * key[d];
      scores[t - begin] = dot;
      most = std::max(most, dot);
    }
    const auto mass = [&](int64_t from, int64_t to) {
      double sum = 0;
      for (int64_t t = from; t < to; ++t) {
        sum += std::exp((static_cast<double>(scores[t - begin]) - most) * scale);
      }
      return sum;
    };
    double chosen = 0;
    for (int64_t p = query_offsets[unit.token]; p < query_offsets[unit.token + 1]; ++p) {
      const int32_t block = query_blocks[head * pairs + p];
      chosen += mass(blocks.block_begin[block], blocks.block_begin[block + 1]);
    }
    const double all = mass(begin, end);
    // A diverged model has no masses to compare; that it diverged is reported elsewhere.
    share[index] = all > 0 && std::isfinite(all) ? std::min(1.0, chosen / all) : 0.0;
  });

  std::vector<double> sums(blocks.sequences(), 0.0);
  std::vector<int64_t> counts(blocks.sequences(), 0);
  for (int64_t u = 0; u < num_units; ++u) {
    for (int h = 0; h < shape.num_heads; ++h) {
      sums[units[u].sequence] += share[u * shape.num_heads + h];
      ++counts[units[u].sequence];
    }
  }
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    sums[s] = counts[s] == 0 ? 1.0 : sums[s] / static_cast<double>(counts[s]);
  }
  return sums;
}

}  // namespace sparsebalance::kernels::cpu
