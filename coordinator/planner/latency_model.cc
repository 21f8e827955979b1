#include "coordinator/planner/latency_model.h"

#include <algorithm>
#include <cmath>

namespace sparsebalance::planner {

int64_t ToFixed(double value) { return std::llround(value * static_cast<double>(kFixedOne)); }

v1::LatencyModel DefaultLatencyModel() {
  v1::LatencyModel model;
  model.set_constant_ms(0.4);
  model.set_per_token_ms(0.0016);
  model.set_per_pair_ms(4.5e-7);
  model.set_router_ms_per_token_block(0.0);
  model.set_forward_fraction(1.0 / 3.0);
  return model;
}

LatencyPredictor::LatencyPredictor(const v1::LatencyModel& model, uint32_t block_tokens)
    : block_tokens_(block_tokens),
      constant_ns_(std::llround(model.constant_ms() * 1e6)),
      step_constant_ns_(std::llround(model.step_constant_ms() * 1e6)),
      per_token_(ToFixed(model.per_token_ms() * 1e6)),
      per_block_pair_(ToFixed(model.per_pair_ms() * 1e6 * block_tokens * block_tokens)),
      router_(ToFixed(model.router_ms_per_token_block() * 1e6)),
      forward_fraction_(std::clamp<int64_t>(ToFixed(model.forward_fraction()), 1, kFixedOne - 1)),
      other_blocks_(model.block_tokens() != 0 && model.block_tokens() != block_tokens),
      min_tokens_(model.min_tokens()),
      max_tokens_(model.max_tokens()),
      min_budget_(model.min_budget_blocks()),
      max_budget_(model.max_budget_blocks()) {}

bool LatencyPredictor::IsExtrapolation(uint64_t tokens, uint32_t budget) const {
  return other_blocks_ || tokens < min_tokens_ || (max_tokens_ != 0 && tokens > max_tokens_) ||
         budget < min_budget_ || (max_budget_ != 0 && budget > max_budget_);
}

}  // namespace sparsebalance::planner
