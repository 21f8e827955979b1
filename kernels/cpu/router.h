#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// means [num_kv_heads, blocks, head_dim].
void BlockMeans(int threads, const AttentionShape& shape, const PackedBlocks& blocks,
                const float* k, float* means);

// See Backend::CoverageCurves.
absl::StatusOr<std::vector<std::vector<double>>> CoverageCurves(Backend* backend, int threads,
                                                                const AttentionShape& shape,
                                                                const PackedBlocks& blocks,
                                                                const float* q, const float* means,
                                                                int sample_stride);

// query_blocks [num_heads, pairs], at query_offsets [tokens + 1] within a head.
absl::Status SelectBlocks(Backend* backend, int threads, const AttentionShape& shape,
                          const PackedBlocks& blocks, const float* q, const float* means,
                          const int64_t* query_offsets, int64_t pairs, int32_t* query_blocks);

// Indices of the `wanted` largest of scores[0..count), in ascending order of index; of equal scores
// the lower index is taken. `keys` is scratch of `count` entries. Requires wanted <= count.
void TopIndices(const float* scores, int64_t count, int64_t wanted, int32_t* keys,
                int32_t* indices);

}  // namespace sparsebalance::kernels::cpu
