// A latency profile computed from operation counts, for simulations without a measured one.
//
// Qwen2.5-3B (36 layers, width 2048, 16 query and 2 KV heads of 128, FFN 11008, vocabulary 151936)
// in bf16 on one H200 for each pipeline stage. Counted are, with a backward of twice the forward
// for products and of two and a half times for attention, which recomputes the scores:
//   per token and layer   2 * (2048 * (2048 + 2 * 256) + 2048 * 2048 + 3 * 2048 * 11008) operations
//   per token             2 * 2048 * 151936 for the output projection, dealt over the stages as if
//                         it were layers
//   per pair and layer    4 * 2048: scores and weighted sum
//   per token and block   2 * 2048: router scores
// at 989 T operations a second (bf16, dense, the data sheet's figure) times an assumed efficiency
// of 0.55 for products, 0.35 for block-sparse attention and 0.10 for the router; 0.012 ms a layer
// and micro-batch for launches. Nothing of it was measured; only ratios matter for balance.
#pragma once

#include <cstdint>

#include "sparsebalance/v1/profile.pb.h"

namespace sparsebalance::simulation {

// Of one stage out of `stages`, all alike. `source` says how it was made.
v1::LatencyProfile ModelledProfile(uint32_t stages, uint32_t block_tokens);

}  // namespace sparsebalance::simulation
