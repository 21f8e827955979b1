#include <algorithm>

#include "kernels/cuda/attention/attention_grads.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sizes.h"
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// Queries that a key tile takes at most; longer lists are cut into such segments. Each costs a
// partial sum in memory, and is work that another multiprocessor may do.
constexpr int kSegment = 1024;

// The queries of a block, for one KV head: the lists of all its query heads, one after the other,
// cut into segments; and its own queries, likewise. A partial sum of each segment lies in
// `partials` [KV heads, segments, row groups, 2, 16 * head_dim]: a row group is 16 keys of the
// block, first of the key's gradient, then of the value's, in the order of the registers of a warp.
struct Segments {
  int64_t group = 0;       // query heads of a KV head
  int64_t listed = 0;      // units for lists, before those for own queries
  int64_t own = 0;         // units for own queries of a block
  int64_t count = 0;       // of a KV head
  int64_t key_tiles = 0;   // of a block
  int64_t row_groups = 0;  // of a block
};

SB_HOST_DEVICE inline Segments MakeSegments(const AttentionShape& shape, const DeviceBlocks& blocks,
                                            int64_t pairs) {
  Segments s;
  s.group = shape.num_heads / shape.num_kv_heads;
  s.listed = ListUnits(s.group * pairs, blocks.blocks, kSegment);
  s.own = CeilDiv(s.group * blocks.block_tokens, kSegment);
  s.count = s.listed + blocks.blocks * s.own;
  s.key_tiles = CeilDiv(blocks.block_tokens, kTileKeys);
  s.row_groups = CeilDiv(blocks.block_tokens, 16);
  return s;
}

// Entries of the KV head's lists that lie before block b.
SB_DEVICE inline int64_t EntriesBefore(const AttentionPlan& plan, int64_t first_head, int64_t group,
                                       int64_t b) {
  int64_t sum = 0;
  for (int64_t h = first_head; h < first_head + group; ++h) {
    sum += plan.lists.block_offsets[h * (plan.blocks.blocks + 1) + b];
  }
  return sum;
}

struct Segment {
  bool own = false;
  int64_t block = 0;
  int64_t first = 0;  // entry of the block's lists, or of its own queries
};

SB_DEVICE inline Segment FindSegment(const AttentionPlan& plan, const Segments& segments,
                                     int64_t first_head, int64_t unit) {
  Segment s;
  if (unit < segments.listed) {
    const auto before = [&](int64_t b) {
      return EntriesBefore(plan, first_head, segments.group, b);
    };
    s.block = BlockOfUnit(plan.blocks.blocks, unit, kSegment, before);
    s.first = (unit - before(s.block) / kSegment - s.block) * kSegment;
  } else {
    s.own = true;
    s.block = (unit - segments.listed) / segments.own;
    s.first = (unit - segments.listed) % segments.own * kSegment;
  }
  return s;
}

// Writes the queries of a segment that `key_first` and the keys after it may see, and their heads;
// returns how many. All threads call it; they see the entries after the next barrier.
SB_DEVICE inline int FillEntries(const AttentionPlan& plan, const Segments& segments,
                                 const Segment& segment, int64_t first_head, int64_t key_first,
                                 SharedPtr<int32_t> query, SharedPtr<int32_t> head) {
  int64_t count = 0;  // of the block, up to this head
  for (int64_t h = first_head; h < first_head + segments.group; ++h) {
    int64_t begin = 0;
    int64_t length = plan.blocks.block_begin[segment.block + 1] - key_first;
    if (!segment.own) {
      const DevicePtr<const int64_t> offsets =
          plan.lists.block_offsets + (h * (plan.blocks.blocks + 1) + segment.block);
      begin = offsets[0];
      length = offsets[1] - begin;
    }
    // Of this head's entries, the i-th is entry `count + i - first` of the segment.
    const int64_t skipped = segment.first > count ? segment.first - count : 0;
    const int64_t end =
        segment.first + kSegment - count < length ? segment.first + kSegment - count : length;
    for (int64_t i = skipped + LinearThread(); i < end; i += kTileThreads) {
      const int64_t entry = count + i - segment.first;
      query[entry] = segment.own ? static_cast<int32_t>(key_first + i)
                                 : plan.lists.block_queries[h * plan.lists.pairs + begin + i];
      head[entry] = static_cast<int32_t>(h);
    }
    count += length;
  }
  const int64_t left = count - segment.first;
  return static_cast<int>(left < kSegment ? left : kSegment);
}

// A thread block for each key tile and segment. Rows are keys here, and columns queries.
template <typename T, int kDim>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kTileThreads, kResidentBlocks<T>)
    KeyGradTiles(AttentionPlan plan, AttentionBackwardTensors<T> tensors,
                 DevicePtr<const float> row_terms, int64_t first_kv_head,
                 DevicePtr<float> partials) {
  constexpr int kTile = kTileKeys * kPitch<T, kDim>;
  constexpr int kStage = kStep * kPitch<T, kDim>;
  using Product = TileProduct<T, kDim>;
  SB_SHARED_ARRAY(int32_t, entry_query, kSegment);
  SB_SHARED_ARRAY(int32_t, entry_head, kSegment);
  SB_SHARED_ARRAY(float, log_sums, 2 * kStep);
  SB_SHARED_ARRAY(float, terms, 2 * kStep);
  const SharedPtr<T> k_tile = DynamicShared<T>();
  const SharedPtr<T> v_tile = k_tile + kTile;
  const SharedPtr<T> q_tiles = v_tile + kTile;
  const SharedPtr<T> grad_tiles = q_tiles + 2 * kStage;
  const SharedPtr<float> warp_floats =
      PtrCast<float>(grad_tiles + 2 * kStage) + WarpId() * Product::kWarpFloats;

  const Segments segments = MakeSegments(plan.shape, plan.blocks, plan.lists.pairs);
  const int64_t kv_head = first_kv_head + BlockIdx().y;
  const int64_t first_head = kv_head * segments.group;
  const int64_t unit = BlockIdx().x / segments.key_tiles;
  const int64_t key_tile = BlockIdx().x % segments.key_tiles;
  const Segment segment = FindSegment(plan, segments, first_head, unit);
  const int64_t key_first = plan.blocks.block_begin[segment.block] + key_tile * kTileKeys;
  const int64_t key_end = plan.blocks.block_begin[segment.block + 1];
  if (key_first >= key_end) return;
  const int entries =
      FillEntries(plan, segments, segment, first_head, key_first, entry_query, entry_head);
  if (entries <= 0) return;
  SyncThreads();

  const auto key_offset = [&](int row) {
    return key_first + row < key_end ? (key_first + row) * plan.shape.kv_stride : -1;
  };
  CopyRows<kDim, kTileKeys>(k_tile, tensors.k + kv_head * kDim, key_offset);
  CopyRows<kDim, kTileKeys>(v_tile, tensors.v + kv_head * kDim, key_offset);
  const auto fetch = [&](int begin) {
    const int stage = begin / kStep % 2;
    const auto offset = [&](int row, int64_t stride) {
      const int i = begin + row;
      return i < entries ? entry_query[i] * stride + int64_t{entry_head[i]} * kDim : -1;
    };
    if (begin < entries) {
      CopyRows<kDim, kStep>(q_tiles + stage * kStage, tensors.q,
                            [&](int row) { return offset(row, plan.shape.q_stride); });
      CopyRows<kDim, kStep>(grad_tiles + stage * kStage, tensors.out_grad,
                            [&](int row) { return offset(row, plan.shape.out_stride); });
      if (LinearThread() < 2 * kStep) {
        const int row = LinearThread() % kStep;
        const int i = begin + row;
        const int64_t at =
            i < entries ? entry_head[i] * plan.blocks.tokens + entry_query[i] : int64_t{0};
        if (LinearThread() < kStep) {
          CpAsync<4>(log_sums + (stage * kStep + row), tensors.lse + at, i < entries ? 4 : 0);
        } else {
          CpAsync<4>(terms + (stage * kStep + row), row_terms + at, i < entries ? 4 : 0);
        }
      }
    }
    CpAsyncCommit();
  };
  fetch(0);

  const int warp_row = WarpId() * 16;
  const int row_in_tile = LaneId() / 4;
  const int column = LaneId() % 4 * 2;
  float k_sums[1][kDim / 8][4] = {};
  float v_sums[1][kDim / 8][4] = {};
  for (int begin = 0; begin < entries; begin += kStep) {
    fetch(begin + kStep);
    CpAsyncWait<1>();
    SyncThreads();
    if (key_first + warp_row < key_end) {
      const int stage = begin / kStep % 2;
      const SharedPtr<const T> q_tile = q_tiles + stage * kStage;
      const SharedPtr<const T> grad_tile = grad_tiles + stage * kStage;
      const int own_rows = warp_row * kPitch<T, kDim>;
      float p[1][kStepTiles][4] = {};
      float grads[1][kStepTiles][4] = {};
      Product::AddTransposed(SharedPtr<const T>(k_tile + own_rows), q_tile, p);
      Product::AddTransposed(SharedPtr<const T>(v_tile + own_rows), grad_tile, grads);
      // Queries beyond the last have zeros for q and out_grad, so they add nothing.
      SB_UNROLL
      for (int j = 0; j < kStepTiles; ++j) {
        SB_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int at = 8 * j + column + e;
          const float log2_sum = log_sums[stage * kStep + at] * kLog2E;
          const float term = terms[stage * kStep + at];
          const int64_t query =
              segment.own && begin + at < entries ? entry_query[begin + at] : key_end;
          SB_UNROLL
          for (int half = 0; half < 2; ++half) {
            float& x = p[0][j][2 * half + e];
            x = query >= key_first + warp_row + 8 * half + row_in_tile
                    ? Exp2(x * plan.log2_scale - log2_sum)
                    : 0.0F;
            grads[0][j][2 * half + e] = x * (grads[0][j][2 * half + e] - term);
          }
        }
      }
      Product::Add(p, grad_tile, warp_floats, v_sums);
      Product::Add(grads, q_tile, warp_floats, k_sums);
    }
    SyncThreads();
  }

  const int64_t row_group = (key_tile * kTileKeys + warp_row) / 16;
  if (key_first + warp_row < key_end) {
    const int64_t index = (BlockIdx().y * segments.count + unit) * segments.row_groups + row_group;
    const DevicePtr<float> to = partials + (index * 2 * 16 * kDim + 4 * LaneId());
    SB_UNROLL
    for (int j = 0; j < kDim / 8; ++j) {
      const float(&k_sum)[4] = k_sums[0][j];
      const float(&v_sum)[4] = v_sums[0][j];
      StoreVec(to + 128 * j, float4{k_sum[0] * plan.scale, k_sum[1] * plan.scale,
                                    k_sum[2] * plan.scale, k_sum[3] * plan.scale});
      StoreVec(to + (16 * kDim + 128 * j), float4{v_sum[0], v_sum[1], v_sum[2], v_sum[3]});
    }
  }
}

// Adds the partial sums of a row group in the order of its segments. A thread block for each row
// group and each of the two gradients; a thread has what one lane has of one column tile.
template <typename T>
SB_GLOBAL void KeyGradSums(AttentionPlan plan, int64_t first_kv_head,
                           DevicePtr<const float> partials, DevicePtr<T> k_grad,
                           DevicePtr<T> v_grad) {
  const Segments segments = MakeSegments(plan.shape, plan.blocks, plan.lists.pairs);
  const int64_t kv_head = first_kv_head + BlockIdx().y;
  const int64_t first_head = kv_head * segments.group;
  const bool of_values = BlockIdx().x % 2 == 1;
  const int64_t row_group = BlockIdx().x / 2 % segments.row_groups;
  const int64_t block = BlockIdx().x / 2 / segments.row_groups;
  const int64_t key_begin = plan.blocks.block_begin[block];
  const int64_t key_end = plan.blocks.block_begin[block + 1];
  if (key_begin + row_group * 16 >= key_end) return;

  float4 sum{0.0F, 0.0F, 0.0F, 0.0F};
  const int64_t group_floats = int64_t{16} * plan.shape.head_dim;
  const auto add = [&](int64_t unit) {
    const int64_t index = (BlockIdx().y * segments.count + unit) * segments.row_groups + row_group;
    const float4 part = LoadVec<float4>(
        partials + ((index * 2 + (of_values ? 1 : 0)) * group_floats + 4 * LinearThread()));
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
  };
  const int64_t before = EntriesBefore(plan, first_head, segments.group, block);
  const int64_t listed = EntriesBefore(plan, first_head, segments.group, block + 1) - before;
  const int64_t first_unit = before / kSegment + block;
  for (int64_t i = 0; i * kSegment < listed; ++i) add(first_unit + i);
  // Own queries from the key tile on.
  const int64_t own =
      (key_end - key_begin - row_group * 16 / kTileKeys * kTileKeys) * segments.group;
  const int64_t first_own = segments.listed + block * segments.own;
  for (int64_t i = 0; i * kSegment < own; ++i) add(first_own + i);

  const int column = LinearThread() / 32 * 8 + LaneId() % 4 * 2;
  const int64_t key = key_begin + row_group * 16 + LaneId() / 4;
  const DevicePtr<T> to = (of_values ? v_grad : k_grad) + key * plan.shape.kv_stride +
                          kv_head * plan.shape.head_dim + column;
  if (key < key_end) StorePair(to, sum.x, sum.y);
  if (key + 8 < key_end) StorePair(to + 8 * plan.shape.kv_stride, sum.z, sum.w);
}

template <typename T, int kDim>
absl::Status KeyGrads(StreamHandle stream, const AttentionPlan& plan,
                      const AttentionBackwardTensors<T>& tensors, DevicePtr<const float> row_terms,
                      int64_t scratch_bytes, DevicePtr<std::byte> scratch) {
  const int64_t heads = plan.shape.num_kv_heads;
  SB_ASSIGN_OR_RETURN(
      const int64_t round,
      HeadsOfScratch(heads, KeyGradBytesOfKvHead(plan.shape, plan.blocks, plan.lists.pairs),
                     scratch_bytes, "one KV head"));
  const Segments segments = MakeSegments(plan.shape, plan.blocks, plan.lists.pairs);
  const DevicePtr<float> partials = PtrCast<float>(scratch);
  for (int64_t first = 0; first < heads; first += round) {
    const int64_t count = std::min(round, heads - first);
    SB_ASSIGN_OR_RETURN(const Dim3 grid, UnitGrid(segments.count * segments.key_tiles, count));
    SB_RETURN_IF_ERROR(Launch(KeyGradTiles<T, kDim>,
                              {.grid = grid,
                               .block = {kTileThreads},
                               .dynamic_shared_bytes = KeyGradSizes<T, kDim>::kSharedBytes,
                               .name = "key_grad_tiles"},
                              stream, plan, tensors, row_terms, first, partials));
    SB_ASSIGN_OR_RETURN(const Dim3 sums_grid,
                        UnitGrid(plan.blocks.blocks * segments.row_groups * 2, count));
    SB_RETURN_IF_ERROR(Launch(KeyGradSums<T>,
                              {.grid = sums_grid, .block = {4 * kDim}, .name = "key_grad_sums"},
                              stream, plan, first, partials, tensors.k_grad, tensors.v_grad));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t KeyGradBytesOfKvHead(const AttentionShape& shape, const DeviceBlocks& blocks,
                             int64_t pairs) {
  const Segments segments = MakeSegments(shape, blocks, pairs);
  return segments.count * segments.row_groups * 2 * 16 * shape.head_dim *
         static_cast<int64_t>(sizeof(float));
}

template <typename T>
absl::Status LaunchKeyGrads(StreamHandle stream, const AttentionPlan& plan,
                            const AttentionBackwardTensors<T>& tensors,
                            DevicePtr<const float> row_terms, int64_t scratch_bytes,
                            DevicePtr<std::byte> scratch) {
  const auto grads = plan.shape.head_dim == 32   ? KeyGrads<T, 32>
                     : plan.shape.head_dim == 64 ? KeyGrads<T, 64>
                                                 : KeyGrads<T, 128>;
  return grads(stream, plan, tensors, row_terms, scratch_bytes, scratch);
}

#define SB_INSTANTIATE(T)                                                     \
  template absl::Status LaunchKeyGrads<T>(StreamHandle, const AttentionPlan&, \
                                          const AttentionBackwardTensors<T>&, \
                                          DevicePtr<const float>, int64_t, DevicePtr<std::byte>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
