#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// See Backend::AttentionMass. query_offsets [tokens + 1], query_blocks [num_heads, pairs].
absl::StatusOr<std::vector<double>> AttentionMass(Backend* backend, int threads,
                                                  const AttentionShape& shape,
                                                  const PackedBlocks& blocks, const float* q,
                                                  const float* k, const int64_t* query_offsets,
                                                  int64_t pairs, const int32_t* query_blocks,
                                                  int queries);

}  // namespace sparsebalance::kernels::cpu
