#include <algorithm>

#include "kernels/cuda/attention/attention_grads.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sizes.h"
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/slot_sums.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// A thread block for each query tile, as in the forward pass: slots [heads, pairs + tokens, kDim]
// get the gradient of the query from one block.
template <typename T, int kDim>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kTileThreads, kResidentBlocks<T>)
    QueryGradTiles(AttentionPlan plan, AttentionBackwardTensors<T> tensors,
                   DevicePtr<const float> row_terms, int64_t first_head, DevicePtr<T> slots) {
  using Product = TileProduct<T, kDim>;
  constexpr int kRows = QueryGradSizes<T, kDim>::kRows;
  constexpr int kTile = kRows * kPitch<T, kDim>;
  constexpr int kStage = kStep * kPitch<T, kDim>;
  SB_SHARED_ARRAY(int32_t, row_query, kRows);
  SB_SHARED_ARRAY(int64_t, row_slot, kRows);
  const SharedPtr<T> q_tile = DynamicShared<T>();
  const SharedPtr<T> grad_tile = q_tile + kTile;
  const SharedPtr<T> k_tiles = grad_tile + kTile;
  const SharedPtr<T> v_tiles = k_tiles + 2 * kStage;
  const SharedPtr<float> warp_floats =
      PtrCast<float>(v_tiles + 2 * kStage) + WarpId() * Product::kWarpFloats;

  const int64_t head = first_head + BlockIdx().y;
  const QueryTile tile = FindQueryTile<kRows>(plan, head, BlockIdx().x);
  if (tile.rows <= 0) return;
  const int64_t kv_begin = tile.key_begin * plan.shape.kv_stride + KvHead(plan, head) * kDim;

  const auto fetch = [&](int key) {
    const auto offset = [&](int row) {
      return key + row < tile.keys ? (key + row) * plan.shape.kv_stride : -1;
    };
    if (key < tile.keys) {
      const int stage = key / kStep % 2 * kStage;
      CopyRows<kDim, kStep>(k_tiles + stage, tensors.k + kv_begin, offset);
      CopyRows<kDim, kStep>(v_tiles + stage, tensors.v + kv_begin, offset);
    }
    CpAsyncCommit();
  };
  for (int row = LinearThread(); row < tile.rows; row += kTileThreads) {
    row_query[row] = QueryOfRow(plan, tile, head, row);
  }
  SyncThreads();
  const auto copy_queries = [&](SharedPtr<T> to, DevicePtr<const T> from, int64_t stride) {
    CopyRows<kDim, kRows>(to, from + head * kDim,
                          [&](int row) { return row < tile.rows ? row_query[row] * stride : -1; });
  };
  copy_queries(q_tile, tensors.q, plan.shape.q_stride);
  copy_queries(grad_tile, tensors.out_grad, plan.shape.out_stride);
  fetch(0);
  for (int row = LinearThread(); row < tile.rows; row += kTileThreads) {
    row_slot[row] = SlotOfRow(plan, tile, head, row_query[row]);
  }

  const int warp_row = WarpId() * 16;
  const int row_in_tile = LaneId() / 4;
  const int column = LaneId() % 4 * 2;
  // Rows that do not exist have zeros everywhere, and so do their gradients.
  float log2_sum[2] = {};
  float row_term[2] = {};
  SB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + 8 * half + row_in_tile;
    if (row < tile.rows) {
      const int64_t at = head * plan.blocks.tokens + row_query[row];
      log2_sum[half] = tensors.lse[at] * kLog2E;
      row_term[half] = row_terms[at];
    }
  }
  float sums[1][kDim / 8][4] = {};

  for (int key = 0; key < tile.keys; key += kStep) {
    fetch(key + kStep);
    CpAsyncWait<1>();
    SyncThreads();
    if (warp_row < tile.rows) {
      const SharedPtr<const T> k_tile = k_tiles + key / kStep % 2 * kStage;
      const SharedPtr<const T> v_tile = v_tiles + key / kStep % 2 * kStage;
      const int own_rows = warp_row * kPitch<T, kDim>;
      float scores[1][kStepTiles][4] = {};
      float grads[1][kStepTiles][4] = {};
      Product::AddTransposed(SharedPtr<const T>(q_tile + own_rows), k_tile, scores);
      Product::AddTransposed(SharedPtr<const T>(grad_tile + own_rows), v_tile, grads);
      SB_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int visible = LastKey(tile, warp_row + 8 * half + row_in_tile) - key - column;
        SB_UNROLL
        for (int j = 0; j < kStepTiles; ++j) {
          SB_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& x = scores[0][j][2 * half + e];
            const float p =
                8 * j + e <= visible ? Exp2(x * plan.log2_scale - log2_sum[half]) : 0.0F;
            x = p * (grads[0][j][2 * half + e] - row_term[half]);
          }
        }
      }
      Product::Add(scores, k_tile, warp_floats, sums);
    }
    SyncThreads();
  }

  const int64_t first_slot = BlockIdx().y * (plan.lists.pairs + plan.blocks.tokens);
  SB_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + 8 * half + row_in_tile;
    if (row < tile.rows) {
      StoreSlot<kDim>(slots + (first_slot + row_slot[row]) * kDim, sums[0], half, plan.scale);
    }
  }
}

template <typename T, int kDim>
absl::Status QueryGrads(StreamHandle stream, const AttentionPlan& plan,
                        const AttentionBackwardTensors<T>& tensors,
                        DevicePtr<const float> row_terms, int64_t scratch_bytes,
                        DevicePtr<std::byte> scratch) {
  const int64_t heads = plan.shape.num_heads;
  SB_ASSIGN_OR_RETURN(
      const int64_t round,
      HeadsOfScratch(heads, QueryGradBytesOfHead<T>(plan.shape, plan.blocks, plan.lists.pairs),
                     scratch_bytes, "one head"));
  const DevicePtr<T> slots = PtrCast<T>(scratch);
  for (int64_t first = 0; first < heads; first += round) {
    const int64_t count = std::min(round, heads - first);
    SB_ASSIGN_OR_RETURN(
        const Dim3 grid,
        UnitGrid(QueryTiles<QueryGradSizes<T, kDim>::kRows>(plan.blocks, plan.lists.pairs), count));
    SB_RETURN_IF_ERROR(Launch(QueryGradTiles<T, kDim>,
                              {.grid = grid,
                               .block = {kTileThreads},
                               .dynamic_shared_bytes = QueryGradSizes<T, kDim>::kSharedBytes,
                               .name = "query_grad_tiles"},
                              stream, plan, tensors, row_terms, first, slots));
    SB_RETURN_IF_ERROR((LaunchSlotSums<T, kDim, /*kSoftmax=*/false>(
        stream, plan, first, count, slots, nullptr, plan.shape.q_stride, tensors.q_grad, nullptr)));
  }
  return absl::OkStatus();
}

}  // namespace

template <typename T>
int64_t QueryGradBytesOfHead(const AttentionShape& shape, const DeviceBlocks& blocks,
                             int64_t pairs) {
  return (pairs + blocks.tokens) * shape.head_dim * static_cast<int64_t>(sizeof(T));
}

template <typename T>
absl::Status LaunchQueryGrads(StreamHandle stream, const AttentionPlan& plan,
                              const AttentionBackwardTensors<T>& tensors,
                              DevicePtr<const float> row_terms, int64_t scratch_bytes,
                              DevicePtr<std::byte> scratch) {
  const auto grads = plan.shape.head_dim == 32   ? QueryGrads<T, 32>
                     : plan.shape.head_dim == 64 ? QueryGrads<T, 64>
                                                 : QueryGrads<T, 128>;
  return grads(stream, plan, tensors, row_terms, scratch_bytes, scratch);
}

#define SB_INSTANTIATE(T)                                                                        \
  template int64_t QueryGradBytesOfHead<T>(const AttentionShape&, const DeviceBlocks&, int64_t); \
  template absl::Status LaunchQueryGrads<T>(StreamHandle, const AttentionPlan&,                  \
                                            const AttentionBackwardTensors<T>&,                  \
                                            DevicePtr<const float>, int64_t, DevicePtr<std::byte>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
