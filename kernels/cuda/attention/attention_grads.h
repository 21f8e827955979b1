#pragma once

// The two halves of the backward pass. Both compute the probabilities anew, p = exp(s - lse), and
// the gradient of the scores, p * (out_grad . v - row_terms), with row_terms [num_heads, tokens] =
// out . out_grad: each half has the products that the other lacks, which costs two products more
// than doing both at once, and saves a slot of each pair for every 64 keys, or atomic sums.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_plan.h"

namespace sparsebalance::kernels::cuda {

// Bytes of scratch for one head, and of one KV head with its query heads.
template <typename T>
int64_t QueryGradBytesOfHead(const AttentionShape& shape, const DeviceBlocks& blocks,
                             int64_t pairs);
int64_t KeyGradBytesOfKvHead(const AttentionShape& shape, const DeviceBlocks& blocks,
                             int64_t pairs);

template <typename T>
absl::Status LaunchQueryGrads(StreamHandle stream, const AttentionPlan& plan,
                              const AttentionBackwardTensors<T>& tensors,
                              DevicePtr<const float> row_terms, int64_t scratch_bytes,
                              DevicePtr<std::byte> scratch);
template <typename T>
absl::Status LaunchKeyGrads(StreamHandle stream, const AttentionPlan& plan,
                            const AttentionBackwardTensors<T>& tensors,
                            DevicePtr<const float> row_terms, int64_t scratch_bytes,
                            DevicePtr<std::byte> scratch);

}  // namespace sparsebalance::kernels::cuda
