#pragma once

// Puts together what a query has from each of its blocks: the rows of `slots` (attention_tile.h) in
// the order of its list, the own block last.

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {

inline constexpr int kSumThreads = 256;

// kSoftmax: rows are weighted by their share of the softmax, from slot_lse, and lse [num_heads,
// tokens] gets the logarithm of its sum. Else rows are added. Head h of `to`
// is written, h counting from first_head as the grid does. A thread has 16 bytes of a row.
template <typename T, int kDim, bool kSoftmax>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kSumThreads)
    SlotSums(AttentionPlan plan, int64_t first_head, DevicePtr<const T> slots,
             DevicePtr<const float> slot_lse, int64_t stride, DevicePtr<T> to,
             DevicePtr<float> lse) {
  constexpr int kElements = kVector<T>;
  constexpr int kThreadsOfRow = kDim / kElements;
  const int64_t query = GlobalThread() / kThreadsOfRow;
  if (query >= plan.blocks.tokens) return;
  const int first = LinearThread() % kThreadsOfRow * kElements;
  const int64_t head = first_head + BlockIdx().y;
  const int64_t first_slot = BlockIdx().y * (plan.lists.pairs + plan.blocks.tokens);
  const int64_t begin = first_slot + plan.lists.query_offsets[query];
  const int64_t end = first_slot + plan.lists.query_offsets[query + 1];
  const int64_t own = first_slot + plan.lists.pairs + query;

  float most = 0;
  if constexpr (kSoftmax) {
    most = slot_lse[own];
    for (int64_t slot = begin; slot < end; ++slot) most = fmaxf(most, slot_lse[slot]);
  }
  float sums[kElements] = {};
  float weights = 0;
  const auto add = [&](int64_t slot) {
    float row[kElements];
    LoadFloats(slots + (slot * kDim + first), row);
    float weight = 1.0F;
    if constexpr (kSoftmax) {
      weight = Exp2(slot_lse[slot] - most);
      weights += weight;
    }
    SB_UNROLL
    for (int i = 0; i < kElements; ++i) sums[i] += weight * row[i];
  };
  for (int64_t slot = begin; slot < end; ++slot) add(slot);
  add(own);

  const float scale = kSoftmax ? 1.0F / weights : 1.0F;
  const DevicePtr<T> out = to + query * stride + head * kDim;
  SB_UNROLL
  for (int i = 0; i < kElements; i += 2) {
    StorePair(out + ColumnOfElement<kDim>(first + i), sums[i] * scale, sums[i + 1] * scale);
  }
  if constexpr (kSoftmax) {
    if (first == 0) {
      lse[head * plan.blocks.tokens + query] = (most + log2f(weights)) * kLn2;
    }
  }
}

template <typename T, int kDim, bool kSoftmax>
absl::Status LaunchSlotSums(StreamHandle stream, const AttentionPlan& plan, int64_t first_head,
                            int64_t heads, DevicePtr<const T> slots,
                            DevicePtr<const float> slot_lse, int64_t stride, DevicePtr<T> to,
                            DevicePtr<float> lse) {
  SB_ASSIGN_OR_RETURN(
      const Dim3 grid,
      UnitGrid(CeilDiv(plan.blocks.tokens * (kDim / kVector<T>), kSumThreads), heads));
  return Launch(SlotSums<T, kDim, kSoftmax>,
                {.grid = grid, .block = {kSumThreads}, .name = kSoftmax ? "merge" : "query_grads"},
                stream, plan, first_head, slots, slot_lse, stride, to, lse);
}

}  // namespace sparsebalance::kernels::cuda
