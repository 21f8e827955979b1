// How much device memory a training step takes, before it runs: what Transformer and AdamW hold,
// walked through in the order in which they allocate and free. The token cap of a job's plans comes
// from here, so that no plan asks a rank for more than it has.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"

namespace sparsebalance::model {

// Bytes.
struct MemoryEstimate {
  int64_t state = 0;        // parameters, gradients, AdamW's two moments
  int64_t activations = 0;  // what forward keeps for backward, the batch itself included
  int64_t peak = 0;         // largest at any moment, the two above included
};

// Of one forward and backward pass. cu_seqlens as in MicroBatch; budgets [sequences], the same in
// every layer. INVALID_ARGUMENT for a bad config or shape.
absl::StatusOr<MemoryEstimate> EstimateMemory(const ModelConfig& config,
                                              const kernels::Backend& backend,
                                              const std::vector<int64_t>& cu_seqlens,
                                              const std::vector<int32_t>& budgets);

// The most tokens of a micro-batch that stays within `limit_bytes` whatever sequences it holds, a
// multiple of the block size. One long sequence is the worst of them: it has the longest lists of
// blocks. max_budget: the largest that a plan may give, 0 for no bound. RESOURCE_EXHAUSTED with the
// bytes that are needed where not even one block fits.
absl::StatusOr<int64_t> MostTokensWithin(const ModelConfig& config, const kernels::Backend& backend,
                                         int32_t max_budget, int64_t limit_bytes);

}  // namespace sparsebalance::model
