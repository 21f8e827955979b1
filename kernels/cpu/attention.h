#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// Plain views of BlockLists.
struct ListView {
  int64_t pairs;
  const int64_t* block_offsets;  // [heads, blocks + 1]
  const int32_t* block_queries;  // [heads, pairs]
};

struct AttentionForwardArgs {
  const float* q;
  const float* k;
  const float* v;
  float* out;
  float* lse;  // [num_heads, tokens], natural logarithm
};

struct AttentionBackwardArgs {
  const float* q;
  const float* k;
  const float* v;
  const float* out;
  const float* lse;
  const float* out_grad;
  float* q_grad;
  float* k_grad;
  float* v_grad;
};

// Bytes of temporary memory that the two below take, but for a part that depends on threads alone.
int64_t AttentionForwardScratch(const AttentionShape& shape, const PackedBlocks& blocks);
int64_t AttentionBackwardScratch(const AttentionShape& shape, const PackedBlocks& blocks);

// Temporary memory comes from `backend`: RESOURCE_EXHAUSTED where it has none left.
absl::Status AttentionForward(Backend* backend, int threads, const AttentionShape& shape,
                              const PackedBlocks& blocks, const ListView& lists,
                              const AttentionForwardArgs& args);
absl::Status AttentionBackward(Backend* backend, int threads, const AttentionShape& shape,
                               const PackedBlocks& blocks, const ListView& lists,
                               const AttentionBackwardArgs& args);

}  // namespace sparsebalance::kernels::cpu
