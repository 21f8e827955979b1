#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sizes.h"
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/slot_sums.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// A thread block for each query tile. Writes normalized outputs to slots [heads, pairs + tokens,
// kDim] and their log-sum-exps to base 2 to slot_lse [heads, pairs + tokens], heads counted from
// first_head. The softmax is the online one of FlashAttention (Dao et al., 2022).
template <typename T, int kDim>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kTileThreads, kResidentBlocks<T>)
    ForwardTiles(AttentionPlan plan, DevicePtr<const T> q, DevicePtr<const T> k,
                 DevicePtr<const T> v, int64_t first_head, DevicePtr<T> slots,
                 DevicePtr<float> slot_lse) {
  using Size = ForwardSizes<T, kDim>;
  using Product = TileProduct<T, kDim>;
  constexpr int kRows = Size::kRows;
  constexpr int kRowTiles = Size::kRowTiles;
  constexpr int kStage = kStep * kPitch<T, kDim>;
  SB_SHARED_ARRAY(int32_t, row_query, kRows);
  SB_SHARED_ARRAY(int64_t, row_slot, kRows);
  const SharedPtr<T> q_tile = DynamicShared<T>();
  const SharedPtr<T> k_tiles = q_tile + kRows * kPitch<T, kDim>;
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
      CopyRows<kDim, kStep>(k_tiles + stage, k + kv_begin, offset);
      CopyRows<kDim, kStep>(v_tiles + stage, v + kv_begin, offset);
    }
    CpAsyncCommit();
  };
  for (int row = LinearThread(); row < tile.rows; row += kTileThreads) {
    row_query[row] = QueryOfRow(plan, tile, head, row);
  }
  SyncThreads();
  CopyRows<kDim, kRows>(q_tile, q + head * kDim, [&](int row) {
    return row < tile.rows ? row_query[row] * plan.shape.q_stride : -1;
  });
  fetch(0);
  // While the copies are under way.
  for (int row = LinearThread(); row < tile.rows; row += kTileThreads) {
    row_slot[row] = SlotOfRow(plan, tile, head, row_query[row]);
  }

  const int warp_row = WarpId() * Size::kWarpRows;
  const int row_in_tile = LaneId() / 4;
  const int column = LaneId() % 4 * 2;
  float out[kRowTiles][kDim / 8][4] = {};
  float most[kRowTiles][2];
  float sum[kRowTiles][2] = {};  // of this lane's columns
  SB_UNROLL
  for (int i = 0; i < kRowTiles; ++i) most[i][0] = most[i][1] = -INFINITY;

  for (int key = 0; key < tile.keys; key += kStep) {
    fetch(key + kStep);
    CpAsyncWait<1>();
    SyncThreads();
    const int stage = key / kStep % 2 * kStage;
    if (warp_row < tile.rows) {
      float scores[kRowTiles][kStepTiles][4] = {};
      Product::AddTransposed(SharedPtr<const T>(q_tile + warp_row * kPitch<T, kDim>),
                             SharedPtr<const T>(k_tiles + stage), scores);
      // A row sees at least the first key of its first step, so that `most` is finite from then on.
      if (key + kStep > UnmaskedKeys(tile)) {
        SB_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
          SB_UNROLL
          for (int half = 0; half < 2; ++half) {
            const int visible =
                LastKey(tile, warp_row + 16 * i + 8 * half + row_in_tile) - key - column;
            SB_UNROLL
            for (int j = 0; j < kStepTiles; ++j) {
              if (8 * j > visible) scores[i][j][2 * half] = -INFINITY;
              if (8 * j + 1 > visible) scores[i][j][2 * half + 1] = -INFINITY;
            }
          }
        }
      }
      SB_UNROLL
      for (int i = 0; i < kRowTiles; ++i) {
        SB_UNROLL
        for (int half = 0; half < 2; ++half) {
          float largest = most[i][half];
          SB_UNROLL
          for (int j = 0; j < kStepTiles; ++j) {
            largest = fmaxf(largest, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
          }
          largest = QuadMax(largest);
          const float keep = Exp2((most[i][half] - largest) * plan.log2_scale);
          most[i][half] = largest;
          sum[i][half] *= keep;
          SB_UNROLL
          for (int j = 0; j < kDim / 8; ++j) {
            out[i][j][2 * half] *= keep;
            out[i][j][2 * half + 1] *= keep;
          }
          SB_UNROLL
          for (int j = 0; j < kStepTiles; ++j) {
            SB_UNROLL
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
              scores[i][j][e] = Exp2((scores[i][j][e] - largest) * plan.log2_scale);
              sum[i][half] += scores[i][j][e];
            }
          }
        }
      }
      Product::Add(scores, SharedPtr<const T>(v_tiles + stage), warp_floats, out);
    }
    SyncThreads();
  }

  const int64_t slots_of_head = plan.lists.pairs + plan.blocks.tokens;
  const int64_t first_slot = BlockIdx().y * slots_of_head;
  SB_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    SB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = QuadSum(sum[i][half]);
      const int row = warp_row + 16 * i + 8 * half + row_in_tile;
      if (row < tile.rows) {
        const int64_t slot = first_slot + row_slot[row];
        StoreSlot<kDim>(slots + slot * kDim, out[i], half, 1.0F / total);
        if (LaneId() % 4 == 0) slot_lse[slot] = most[i][half] * plan.log2_scale + log2f(total);
      }
    }
  }
}

template <typename T>
int64_t HeadBytes(const AttentionShape& shape, const DeviceBlocks& blocks, int64_t pairs) {
  const int64_t slot_bytes =
      shape.head_dim * static_cast<int64_t>(sizeof(T)) + static_cast<int64_t>(sizeof(float));
  return Aligned((pairs + blocks.tokens) * slot_bytes);
}

template <typename T, int kDim>
absl::Status Forward(StreamHandle stream, const AttentionPlan& plan, DevicePtr<const T> q,
                     DevicePtr<const T> k, DevicePtr<const T> v, DevicePtr<T> out,
                     DevicePtr<float> lse, int64_t scratch_bytes, DevicePtr<std::byte> scratch) {
  const int64_t heads = plan.shape.num_heads;
  const int64_t slots_of_head = plan.lists.pairs + plan.blocks.tokens;
  SB_ASSIGN_OR_RETURN(const int64_t round,
                      HeadsOfScratch(heads, HeadBytes<T>(plan.shape, plan.blocks, plan.lists.pairs),
                                     scratch_bytes, "one head"));
  const DevicePtr<T> slots = PtrCast<T>(scratch);
  const DevicePtr<float> slot_lse = PtrCast<float>(slots + round * slots_of_head * kDim);
  for (int64_t first = 0; first < heads; first += round) {
    const int64_t count = std::min(round, heads - first);
    SB_ASSIGN_OR_RETURN(
        const Dim3 grid,
        UnitGrid(QueryTiles<ForwardSizes<T, kDim>::kRows>(plan.blocks, plan.lists.pairs), count));
    SB_RETURN_IF_ERROR(Launch(ForwardTiles<T, kDim>,
                              {.grid = grid,
                               .block = {kTileThreads},
                               .dynamic_shared_bytes = ForwardSizes<T, kDim>::kSharedBytes,
                               .name = "forward_tiles"},
                              stream, plan, q, k, v, first, slots, slot_lse));
    SB_RETURN_IF_ERROR((LaunchSlotSums<T, kDim, /*kSoftmax=*/true>(
        stream, plan, first, count, slots, slot_lse, plan.shape.out_stride, out, lse)));
  }
  return absl::OkStatus();
}

}  // namespace

template <typename T>
int64_t AttentionForwardScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                                     int64_t pairs, int64_t scratch_limit_bytes) {
  const int64_t bytes = HeadBytes<T>(shape, blocks, pairs);
  return bytes * HeadsOfRound(shape.num_heads, bytes, scratch_limit_bytes);
}

template <typename T>
absl::Status LaunchAttentionForward(StreamHandle stream, const AttentionShape& shape,
                                    const DeviceBlocks& blocks, const DeviceLists& lists,
                                    DevicePtr<const T> q, DevicePtr<const T> k,
                                    DevicePtr<const T> v, DevicePtr<T> out, DevicePtr<float> lse,
                                    int64_t scratch_bytes, DevicePtr<std::byte> scratch) {
  SB_RETURN_IF_ERROR(CheckAttention(shape, blocks, lists));
  const AttentionPlan plan = MakeAttentionPlan(shape, blocks, lists);
  const auto forward = shape.head_dim == 32   ? Forward<T, 32>
                       : shape.head_dim == 64 ? Forward<T, 64>
                                              : Forward<T, 128>;
  return forward(stream, plan, q, k, v, out, lse, scratch_bytes, scratch);
}

#define SB_INSTANTIATE(T)                                                                         \
  template int64_t AttentionForwardScratchBytes<T>(const AttentionShape&, const DeviceBlocks&,    \
                                                   int64_t, int64_t);                             \
  template absl::Status LaunchAttentionForward<T>(                                                \
      StreamHandle, const AttentionShape&, const DeviceBlocks&, const DeviceLists&,               \
      DevicePtr<const T>, DevicePtr<const T>, DevicePtr<const T>, DevicePtr<T>, DevicePtr<float>, \
      int64_t, DevicePtr<std::byte>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
