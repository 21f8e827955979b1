#include <algorithm>

#include "kernels/cuda/attention/router.h"
#include "kernels/cuda/attention/router_scores.h"
#include "kernels/cuda/attention/warp.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr int kMeanThreads = 256;

// A thread block for each block and KV head. Its threads add the keys of every kMeanThreads /
// (head_dim / 4)-th token, four dimensions each; then one thread for each dimension adds these.
template <typename T>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kMeanThreads)
    BlockMeans(AttentionShape shape, DeviceBlocks blocks, DevicePtr<const T> k,
               DevicePtr<float> means) {
  SB_SHARED_ARRAY(float, partial, 4 * kMeanThreads);
  const int64_t block = BlockIdx().x;
  const int64_t head = BlockIdx().y;
  const int64_t begin = blocks.block_begin[block];
  const int64_t end = blocks.block_begin[block + 1];
  const int columns = shape.head_dim / 4;
  const int slices = kMeanThreads / columns;
  const int slice = LinearThread() / columns;
  const int d = LinearThread() % columns * 4;
  if (slice < slices) {
    float4 sum{0.0F, 0.0F, 0.0F, 0.0F};
    for (int64_t t = begin + slice; t < end; t += slices) {
      const float4 key = LoadFour(k + t * shape.kv_stride + head * shape.head_dim + d);
      sum.x += key.x;
      sum.y += key.y;
      sum.z += key.z;
      sum.w += key.w;
    }
    StoreVec(partial + slice * shape.head_dim + d, sum);
  }
  SyncThreads();
  if (LinearThread() < shape.head_dim) {
    float sum = 0.0F;
    for (int i = 0; i < slices; ++i) sum += partial[i * shape.head_dim + LinearThread()];
    means[(head * blocks.blocks + block) * shape.head_dim + LinearThread()] =
        sum / static_cast<float>(end - begin);
  }
}

// Writes the selected of `count` blocks, numbered from `first`, in ascending order. By one warp.
template <typename Keys>
SB_DEVICE inline void WriteSelected(Keys keys, int count, int wanted, int32_t first,
                                    DevicePtr<int32_t> to) {
  const Threshold threshold = FindThreshold(keys, count, wanted);
  const uint32_t lanes_below = (1U << LaneId()) - 1U;
  int ties = threshold.ties;
  int filled = 0;
  for (int begin = 0; filled < wanted; begin += 32) {
    const int i = begin + LaneId();
    const bool exists = i < count;
    const int32_t key = exists ? keys[i] : 0;
    const uint32_t tied = Ballot(kAllLanes, exists && key == threshold.key);
    const bool above = exists && key > threshold.key;
    const bool wins_tie = exists && key == threshold.key && CountBits(tied & lanes_below) < ties;
    const uint32_t taken = Ballot(kAllLanes, above || wins_tie);
    if (above || wins_tie) to[filled + CountBits(taken & lanes_below)] = first + i;
    filled += CountBits(taken);
    ties -= CountBits(tied);
  }
}

// Thread blocks take tiles of kRows queries of one head and one block until none is left, those
// with the most past blocks first.
template <typename T, int kRows, bool kScoresInScratch>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kRouterThreads)
    SelectBlocks(AttentionShape shape, DeviceBlocks blocks, DevicePtr<const T> q,
                 DevicePtr<const float> means, DevicePtr<const int64_t> query_offsets,
                 int64_t pairs, DevicePtr<int32_t> query_blocks, DevicePtr<int32_t> scratch) {
  const SharedPtr<float> shared = DynamicShared<float>();
  const int64_t columns = blocks.most_blocks;
  const auto keys = [&] {
    if constexpr (kScoresInScratch) {
      return scratch + BlockIdx().x * kRows * columns;
    } else {
      return PtrCast<int32_t>(shared + TileFloats(kRows, shape.head_dim));
    }
  }();
  const int64_t tiles = (blocks.block_tokens + kRows - 1) / kRows;
  const int64_t units = blocks.blocks * tiles * shape.num_heads;
  for (int64_t i = BlockIdx().x; i < units; i += GridDim().x) {
    const int64_t unit = units - 1 - i;
    const int64_t head = unit % shape.num_heads;
    const int64_t tile = unit / shape.num_heads % tiles;
    const int64_t block = unit / shape.num_heads / tiles;
    const int64_t token = blocks.block_begin[block] + tile * kRows;
    const int64_t left = blocks.block_begin[block + 1] - token;
    if (left <= 0) continue;
    const int rows = left < kRows ? static_cast<int>(left) : kRows;
    const int64_t first_block = blocks.first_block[blocks.block_sequence[block]];
    const auto past = static_cast<int>(block - first_block);
    const auto wanted = static_cast<int>(query_offsets[token + 1] - query_offsets[token]);
    const DevicePtr<int32_t> to = query_blocks + head * pairs + query_offsets[token];
    const auto first = static_cast<int32_t>(first_block);
    if (wanted == past) {  // All past blocks, whatever their scores.
      for (int64_t p = LinearThread(); p < int64_t{rows} * past; p += kRouterThreads) {
        to[p] = first + static_cast<int32_t>(p % past);
      }
      continue;
    }
    if (wanted == 0) continue;
    const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    ScoreRows<T, kRows>(
        shape.head_dim, rows,
        [&](int row) { return q + (token + row) * shape.q_stride + head * shape.head_dim; },
        means + (kv_head * blocks.blocks + first_block) * shape.head_dim, past, shared,
        [&](int row, int64_t b, float score) { keys[row * columns + b] = ScoreKey(score); });
    for (int row = WarpId(); row < rows; row += kRouterWarps) {
      WriteSelected(keys + row * columns, past, wanted, first, to + int64_t{row} * wanted);
    }
  }
}

RouterMemory SelectMemory(const AttentionShape& shape, const DeviceBlocks& blocks,
                          int64_t shared_limit) {
  return PlanRouterMemory(blocks.block_tokens > kFewRows ? kManyRows : kFewRows, shape.head_dim,
                          blocks.most_blocks, shared_limit, /*reserved=*/0);
}

}  // namespace

template <typename T>
absl::Status LaunchBlockMeans(StreamHandle stream, const AttentionShape& shape,
                              const DeviceBlocks& blocks, DevicePtr<const T> k,
                              DevicePtr<float> means) {
  SB_RETURN_IF_ERROR(CheckRouterShape(shape));
  return Launch(
      BlockMeans<T>,
      {.grid = {static_cast<unsigned>(blocks.blocks), static_cast<unsigned>(shape.num_kv_heads)},
       .block = {kMeanThreads},
       .name = "block_means"},
      stream, shape, blocks, k, means);
}

int64_t SelectScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                           int64_t shared_limit) {
  const RouterMemory memory = SelectMemory(shape, blocks, shared_limit);
  return memory.scores_in_scratch ? kScratchWorkers * memory.rows * blocks.most_blocks *
                                        static_cast<int64_t>(sizeof(int32_t))
                                  : 0;
}

template <typename T>
absl::Status LaunchSelectBlocks(StreamHandle stream, const AttentionShape& shape,
                                const DeviceBlocks& blocks, int64_t shared_limit,
                                DevicePtr<const T> q, DevicePtr<const float> means,
                                DevicePtr<const int64_t> query_offsets, int64_t pairs,
                                DevicePtr<int32_t> query_blocks, DevicePtr<std::byte> scratch) {
  SB_RETURN_IF_ERROR(CheckRouterShape(shape));
  if (pairs == 0) return absl::OkStatus();
  const RouterMemory memory = SelectMemory(shape, blocks, shared_limit);
  const int64_t tiles = (blocks.block_tokens + memory.rows - 1) / memory.rows;
  const int64_t units = blocks.blocks * tiles * shape.num_heads;
  const int64_t most = memory.scores_in_scratch ? kScratchWorkers : 0x7FFFFFFF;
  const LaunchConfig config{.grid = {static_cast<unsigned>(std::min(units, most))},
                            .block = {kRouterThreads},
                            .dynamic_shared_bytes = memory.shared_bytes,
                            .name = "select_blocks"};
  const auto kernel = memory.scores_in_scratch   ? SelectBlocks<T, kFewRows, true>
                      : memory.rows == kManyRows ? SelectBlocks<T, kManyRows, false>
                                                 : SelectBlocks<T, kFewRows, false>;
  return Launch(kernel, config, stream, shape, blocks, q, means, query_offsets, pairs, query_blocks,
                PtrCast<int32_t>(scratch));
}

#define SB_INSTANTIATE(T)                                                                       \
  template absl::Status LaunchBlockMeans<T>(StreamHandle, const AttentionShape&,                \
                                            const DeviceBlocks&, DevicePtr<const T>,            \
                                            DevicePtr<float>);                                  \
  template absl::Status LaunchSelectBlocks<T>(StreamHandle, const AttentionShape&,              \
                                              const DeviceBlocks&, int64_t, DevicePtr<const T>, \
                                              DevicePtr<const float>, DevicePtr<const int64_t>, \
                                              int64_t, DevicePtr<int32_t>, DevicePtr<std::byte>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
