#pragma once

// What the attention kernels are told, and the host's side of it: checks, grids, and how many heads
// go into one round.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/device/types.h"

namespace sparsebalance::kernels::cuda {

struct AttentionPlan {
  AttentionShape shape;
  DeviceBlocks blocks;
  DeviceLists lists;
  float scale = 0;       // of scores, 1 / sqrt(head_dim)
  float log2_scale = 0;  // of scores whose exponentials are taken to base 2
};

SB_HOST_DEVICE inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline absl::Status CheckAttention(const AttentionShape& shape, const DeviceBlocks& blocks,
                                   const DeviceLists& lists) {
  const int dim = shape.head_dim;
  const int64_t q_row = int64_t{shape.num_heads} * dim;
  const int64_t kv_row = int64_t{shape.num_kv_heads} * dim;
  if (dim != 32 && dim != 64 && dim != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", dim, "; the attention kernels take 32, 64 and 128"));
  }
  if (shape.num_kv_heads < 1 || shape.num_heads < 1 || shape.num_heads % shape.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(shape.num_heads, " heads and ",
                                                   shape.num_kv_heads,
                                                   " KV heads; heads must be a multiple of KV "
                                                   "heads"));
  }
  const auto bad = [](int64_t stride, int64_t row) { return stride % 8 != 0 || stride < row; };
  if (bad(shape.q_stride, q_row) || bad(shape.kv_stride, kv_row) || bad(shape.out_stride, q_row)) {
    return absl::InvalidArgumentError(
        absl::StrCat("strides of q, k and v, out are ", shape.q_stride, ", ", shape.kv_stride, ", ",
                     shape.out_stride, "; they must be multiples of 8 and hold rows of ", q_row,
                     ", ", kv_row, ", ", q_row, " elements"));
  }
  if (lists.pairs < 0 || blocks.blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat(lists.pairs, " pairs and ", blocks.blocks,
                                                   " blocks; attention needs a block"));
  }
  return absl::OkStatus();
}

inline AttentionPlan MakeAttentionPlan(const AttentionShape& shape, const DeviceBlocks& blocks,
                                       const DeviceLists& lists) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  return {shape, blocks, lists, static_cast<float>(scale), static_cast<float>(scale * kLog2E)};
}

// How many of `heads` go into one round: rounds are alike, and as few as the limit allows.
inline int64_t HeadsOfRound(int64_t heads, int64_t bytes_of_head, int64_t limit_bytes) {
  const int64_t most = std::clamp<int64_t>(limit_bytes / bytes_of_head, 1, heads);
  return CeilDiv(heads, CeilDiv(heads, most));
}

// The same for a launcher, which may not exceed the scratch; `what` is for messages.
inline absl::StatusOr<int64_t> HeadsOfScratch(int64_t heads, int64_t bytes_of_head,
                                              int64_t scratch_bytes, const char* what) {
  if (scratch_bytes < bytes_of_head) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scratch of ", scratch_bytes, " bytes is too small; ", what, " takes ", bytes_of_head));
  }
  return std::min(heads, scratch_bytes / bytes_of_head);
}

// A grid of [units, heads].
inline absl::StatusOr<Dim3> UnitGrid(int64_t units, int64_t heads) {
  if (units > 0x7FFFFFFF || heads > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(units, " units of work for each of ", heads,
                                                   " heads are more than a grid has"));
  }
  return Dim3{static_cast<unsigned>(units), static_cast<unsigned>(heads)};
}

// Sizes of what follows in scratch stay multiples of 16 bytes.
inline int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, 16) * 16; }

}  // namespace sparsebalance::kernels::cuda
