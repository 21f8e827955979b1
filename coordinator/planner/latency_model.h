// The closed form behind every prediction, in nanoseconds.
//
//   t(n, k) = per_token * n + per_pair * B^2 * pairs(N, k) + router * n * N
//
// with N = ceil(n / B) blocks. Coefficients are rounded once to fixed point; everything after is
// integer arithmetic, so that a prediction is the same on every machine.
#pragma once

#include <cstdint>

#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

// Fixed point with so many fractional bits: of a nanosecond in coefficients, of one in factors.
inline constexpr int kFractionBits = 20;
inline constexpr int64_t kFixedOne = int64_t{1} << kFractionBits;

// value * 2^kFractionBits, rounded to nearest; value is finite, >= 0 and below 2^42.
int64_t ToFixed(double value);

// Nearest integer to value * factor, factor in fixed point; value >= 0.
inline int64_t MulFixed(int64_t value, int64_t factor) {
  return static_cast<int64_t>((Int128{value} * factor + kFixedOne / 2) >> kFractionBits);
}

inline double MsFromNs(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Block pairs that a sequence of N blocks computes with budget k: sum_{j=1..N} min(j, k).
inline int64_t BlockPairs(int64_t blocks, int64_t budget) {
  const int64_t k = budget < blocks ? budget : blocks;
  return k * (k + 1) / 2 + (blocks - k) * k;
}

// What is assumed before anything is known. Its ratios are those of a small transformer with
// MoBA attention on one CPU core; only ratios matter for balance.
v1::LatencyModel DefaultLatencyModel();

class LatencyPredictor {
 public:
  // The model's terms are finite and >= 0 and forward_fraction is in (0, 1); block_tokens >= 1.
  LatencyPredictor(const v1::LatencyModel& model, uint32_t block_tokens);

  // The part of a sequence's time that does not depend on its budget, fixed point nanoseconds.
  Int128 FixedPart(int64_t tokens, int64_t blocks) const {
    return Int128{per_token_} * tokens + Int128{router_} * tokens * blocks;
  }

  // Forward and backward of one sequence on one stage, nanoseconds.
  int64_t SequenceNs(int64_t tokens, int64_t blocks, int64_t budget) const {
    return TimeNs(FixedPart(tokens, blocks), blocks, budget);
  }
  int64_t TimeNs(Int128 fixed_part, int64_t blocks, int64_t budget) const {
    const Int128 sum = fixed_part + Int128{per_block_pair_} * BlockPairs(blocks, budget);
    return static_cast<int64_t>((sum + kFixedOne / 2) >> kFractionBits);
  }

  int64_t constant_ns() const { return constant_ns_; }
  int64_t step_constant_ns() const { return step_constant_ns_; }
  // Forward's share, fixed point.
  int64_t forward_fraction() const { return forward_fraction_; }
  uint32_t block_tokens() const { return block_tokens_; }

  // Outside the range of the measurements behind the model, or made for other blocks.
  bool IsExtrapolation(uint64_t tokens, uint32_t budget) const;

 private:
  uint32_t block_tokens_;
  int64_t constant_ns_, step_constant_ns_;
  int64_t per_token_, per_block_pair_, router_;  // fixed point nanoseconds
  int64_t forward_fraction_;
  bool other_blocks_;
  uint64_t min_tokens_, max_tokens_;
  uint32_t min_budget_, max_budget_;
};

}  // namespace sparsebalance::planner
