#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/router_scores.h"
#include "kernels/cuda/attention/warp.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr int kMassThreads = 128;
constexpr int kMassWarps = kMassThreads / 32;
constexpr int kMostDim = 256;

// Up to `queries` tokens of a sequence that have a past block, evenly spread, the last one among
// them.
struct Sample {
  int64_t first = 0, tokens = 0, taken = 0;
};

SB_DEVICE inline Sample SampleOf(const DeviceBlocks& blocks, int64_t sequence, int queries) {
  const int64_t block = blocks.first_block[sequence];
  if (blocks.first_block[sequence + 1] - block < 2) return {};
  const int64_t first = blocks.block_begin[block + 1];
  const int64_t tokens = blocks.cu_seqlens[sequence + 1] - first;
  return {first, tokens, tokens < queries ? tokens : queries};
}

// shares [sequences, queries, num_heads]. A thread block for each sampled query of a head. A thread
// takes every kMassThreads-th key of each past block and keeps sums relative to the largest score
// that it has met.
template <typename T>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kMassThreads)
    MassShares(AttentionPlan plan, DevicePtr<const T> q, DevicePtr<const T> k, int queries,
               DevicePtr<double> shares) {
  SB_SHARED_ARRAY(float, query_row, kMostDim);
  SB_SHARED_ARRAY(float, warp_most, kMassWarps);
  SB_SHARED_ARRAY(double, warp_all, kMassWarps);
  SB_SHARED_ARRAY(double, warp_chosen, kMassWarps);
  const AttentionShape& shape = plan.shape;
  const DeviceBlocks& blocks = plan.blocks;
  const int64_t sequence = BlockIdx().x / queries;
  const int64_t number = BlockIdx().x % queries;
  const int64_t head = BlockIdx().y;
  const Sample sample = SampleOf(blocks, sequence, queries);
  if (number >= sample.taken) return;
  const int64_t query = sample.first + (number + 1) * sample.tokens / sample.taken - 1;
  const int64_t first_block = blocks.first_block[sequence];
  const int64_t own_block =
      first_block + (query - blocks.cu_seqlens[sequence]) / blocks.block_tokens;
  for (int d = 4 * LinearThread(); d < shape.head_dim; d += 4 * kMassThreads) {
    StoreVec(query_row + d, LoadFour(q + query * shape.q_stride + head * shape.head_dim + d));
  }
  SyncThreads();

  const DevicePtr<const T> keys =
      k + head / (shape.num_heads / shape.num_kv_heads) * shape.head_dim;
  DevicePtr<const int32_t> list = plan.lists.query_blocks + head * plan.lists.pairs;
  int64_t next = plan.lists.query_offsets[query];
  const int64_t list_end = plan.lists.query_offsets[query + 1];
  float most = -INFINITY;
  double all = 0;
  double chosen = 0;
  for (int64_t block = first_block; block < own_block; ++block) {
    // The list ascends, as the loop does.
    const bool listed = next < list_end && list[next] == block;
    if (listed) ++next;
    for (int64_t t = blocks.block_begin[block] + LinearThread(); t < blocks.block_begin[block + 1];
         t += kMassThreads) {
      const DevicePtr<const T> key = keys + t * shape.kv_stride;
      float score = 0.0F;
      for (int d = 0; d < shape.head_dim; d += 4) {
        const float4 a = LoadVec<float4>(query_row + d);
        const float4 b = LoadFour(key + d);
        score += a.x * b.x;
        score += a.y * b.y;
        score += a.z * b.z;
        score += a.w * b.w;
      }
      if (score > most) {
        const double keep = exp((static_cast<double>(most) - score) * plan.scale);
        all *= keep;
        chosen *= keep;
        most = score;
      }
      const double mass = exp((static_cast<double>(score) - most) * plan.scale);
      all += mass;
      if (listed) chosen += mass;
    }
  }

  float largest = most;
  SB_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    largest = fmaxf(largest, ShflXor(kAllLanes, largest, mask));
  }
  if (LaneId() == 0) warp_most[WarpId()] = largest;
  SyncThreads();
  for (int warp = 0; warp < kMassWarps; ++warp) largest = fmaxf(largest, warp_most[warp]);
  // A thread without a key has sums of 0, and no score to compare.
  const double keep =
      most > -INFINITY ? exp((static_cast<double>(most) - largest) * plan.scale) : 1.0;
  all = WarpSum(all * keep);
  chosen = WarpSum(chosen * keep);
  if (LaneId() == 0) {
    warp_all[WarpId()] = all;
    warp_chosen[WarpId()] = chosen;
  }
  SyncThreads();
  if (LinearThread() == 0) {
    all = chosen = 0;
    for (int warp = 0; warp < kMassWarps; ++warp) {
      all += warp_all[warp];
      chosen += warp_chosen[warp];
    }
    // A diverged model has no masses to compare; that it diverged is reported elsewhere.
    const double share = all > 0 && all < INFINITY ? chosen / all : 0.0;
    shares[(sequence * queries + number) * shape.num_heads + head] = share < 1.0 ? share : 1.0;
  }
}

// A warp for each sequence.
SB_GLOBAL void MassMeans(DeviceBlocks blocks, int num_heads, int queries,
                         DevicePtr<const double> shares, DevicePtr<double> mass) {
  const int64_t sequence = BlockIdx().x;
  const int64_t count = SampleOf(blocks, sequence, queries).taken * num_heads;
  double sum = 0;
  for (int64_t i = LaneId(); i < count; i += 32) sum += shares[sequence * queries * num_heads + i];
  sum = WarpSum(sum);
  if (LaneId() == 0) mass[sequence] = count > 0 ? sum / static_cast<double>(count) : 1.0;
}

}  // namespace

int64_t AttentionMassScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                                  int queries) {
  return blocks.sequences * queries * shape.num_heads * static_cast<int64_t>(sizeof(double));
}

template <typename T>
absl::Status LaunchAttentionMass(StreamHandle stream, const AttentionShape& shape,
                                 const DeviceBlocks& blocks, const DeviceLists& lists,
                                 DevicePtr<const T> q, DevicePtr<const T> k, int queries,
                                 DevicePtr<double> mass, DevicePtr<std::byte> scratch) {
  SB_RETURN_IF_ERROR(CheckRouterShape(shape));
  if (queries < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention mass of ", queries, " queries; at least one is needed"));
  }
  SB_ASSIGN_OR_RETURN(const Dim3 grid, UnitGrid(blocks.sequences * queries, shape.num_heads));
  const DevicePtr<double> shares = PtrCast<double>(scratch);
  SB_RETURN_IF_ERROR(Launch(MassShares<T>,
                            {.grid = grid, .block = {kMassThreads}, .name = "mass_shares"}, stream,
                            MakeAttentionPlan(shape, blocks, lists), q, k, queries, shares));
  return Launch(
      MassMeans,
      {.grid = {static_cast<unsigned>(blocks.sequences)}, .block = {32}, .name = "mass_means"},
      stream, blocks, shape.num_heads, queries, shares, mass);
}

#define SB_INSTANTIATE(T)                                                           \
  template absl::Status LaunchAttentionMass<T>(                                     \
      StreamHandle, const AttentionShape&, const DeviceBlocks&, const DeviceLists&, \
      DevicePtr<const T>, DevicePtr<const T>, int, DevicePtr<double>, DevicePtr<std::byte>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
